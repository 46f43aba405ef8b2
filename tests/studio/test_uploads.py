"""Files from outside: what is kept of them, what is refused and how, and that refusals leave nothing behind."""

import gzip
import io
import re
import stat
import zipfile
from dataclasses import replace
from urllib.parse import quote

import nibabel
import numpy as np
import pytest

from fheat.io import read_nifti, write_nifti
from fheat.io.nrrd import write_nrrd
from fheat.io.volume import Volume
from fheat.studio import reading
from fheat.studio.reading import Files, coarser
from fheat.studio.settings import Limits
from tests.io import dicom_series
from tests.studio.conftest import AFFINE, SHAPE, client_of, sent

NIFTI = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4)).to_bytes()


@pytest.fixture(scope="module")
def client(settings, launcher):
    with client_of(settings, launcher) as client:
        yield client


def left(client):
    """Return all that lies in the folders of scans and jobs."""
    return sorted(path.name for part in ("scans", "jobs") for path in (client.service.folder / part).rglob("*"))


def put(client, name, content, **options):
    return client.put(f"/api/scans?name={quote(name)}", content=content, **options)


def zipped(entries, **options):
    """Return an archive of (name or ZipInfo, content)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", **options) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return packed.getvalue()


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """The files of a DICOM series by name, and its voxels."""
    pytest.importorskip("pydicom")
    data = dicom_series.scan((26, 24, 20))
    folder = dicom_series.save(dicom_series.slices(data, np.diag([0.9, 0.9, 1.5, 1.0])), tmp_path_factory.mktemp("a"))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}, data


def test_a_scan_is_described_and_comes_back_without_its_header(client, tmp_path):
    image = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.diag([-2.0, -2.0, 3.0, 1.0]))
    image.header["descrip"] = b"Doe^Jane 1970"
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"Doe^Jane"))
    answer = put(client, "head (1).nii", image.to_bytes())
    assert answer.status_code == 201
    found = answer.json()
    assert found["shape"] == [3, 4, 5]
    assert found["spacing"] == [2.0, 2.0, 3.0]
    assert (found["orientation"], found["channels"], found["kind"]) == ("LPS", 1, "nifti")
    assert client.get(f"/api/scans/{found['scan']}").json() == found
    picture = client.get(f"/api/scans/{found['scan']}/image.nii.gz")
    assert b"Doe" not in gzip.decompress(picture.content)
    (tmp_path / "a.nii.gz").write_bytes(picture.content)
    assert np.array_equal(read_nifti(tmp_path / "a.nii.gz").data, np.asarray(image.dataobj))
    for file in (client.service.folder / "scans" / found["scan"]).iterdir():
        assert b"Doe" not in file.read_bytes()
    assert client.delete(f"/api/scans/{found['scan']}").json() == found
    assert client.get(f"/api/scans/{found['scan']}").status_code == 404
    assert left(client) == []


def test_every_kind_gives_the_same_voxels_in_the_same_place(client, tmp_path):
    volume = Volume(np.random.default_rng(0).integers(0, 99, SHAPE).astype(np.int16), AFFINE)
    write_nifti(volume, tmp_path / "a.nii")
    write_nifti(volume, tmp_path / "a.nii.gz")
    write_nrrd(volume, tmp_path / "a.nrrd")
    for name in ("a.nii", "a.nii.gz", "a.nrrd"):
        scan = sent(client, tmp_path / name, name.upper())
        kept = read_nifti(client.service.scans.get(scan["scan"]).file)
        assert np.array_equal(kept.data, volume.data)
        assert np.allclose(kept.affine, AFFINE, atol=1e-6)
        client.delete(f"/api/scans/{scan['scan']}")


def test_a_zipped_series_is_a_scan(client, series):
    files, data = series
    entries = [(f"patient/series 1/{name}", content) for name, content in files.items()]
    entries += [("patient/", b""), ("__MACOSX/._000.dcm", b"x"), ("patient/DICOMDIR", b"x"), ("readme.txt", b"hello")]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        answer = put(client, "series.zip", zipped(entries, compression=method))
        assert answer.status_code == 201, answer.text
        assert (answer.json()["kind"], answer.json()["shape"]) == ("dicom", list(data.shape))
        scan = client.service.scans.get(answer.json()["scan"])
        assert np.array_equal(read_nifti(scan.file).data, data)
        assert sorted(path.name for path in scan.folder.iterdir()) == ["scan.nii", "series"]
        assert {path.name for path in scan.series.iterdir()} == {f"{n:05d}.dcm" for n in range(data.shape[2])}
        client.delete(f"/api/scans/{scan.id}")


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def changed(offset, value):
    return NIFTI[:offset] + value + NIFTI[offset + len(value) :]


def many_names():
    packed = bytearray(zipped([("a", b"")]))
    packed[-12:-10] = packed[-14:-12] = (60_000).to_bytes(2, "little")
    return bytes(packed)


def bomb():
    """Return an archive of 8 KB with a file that unpacks to 8 MB."""
    return zipped([("a.dcm", bytes(128) + b"DICM" + bytes(8 * 2**20))], compression=zipfile.ZIP_DEFLATED)


def liar():
    """Return an archive whose entry declares fewer bytes than it unpacks to."""
    content = bytes(128) + b"DICM" + bytes(2**20)
    return zipped([("a.dcm", content)]).replace(len(content).to_bytes(4, "little"), (200).to_bytes(4, "little"))


MALFORMED = {
    "empty": ("a.nii", b""),
    "noise": ("a.nii.gz", np.random.default_rng(0).bytes(5000)),
    "text": ("a.nii", b"<html>" * 200),
    "truncated header": ("a.nii", NIFTI[:200]),
    "truncated voxels": ("a.nii", NIFTI[:-7]),
    "truncated gzip": ("a.nii.gz", gzip.compress(NIFTI)[:-9]),
    "flipped bit in gzip": ("a.nii.gz", gzip.compress(NIFTI)[:-5] + b"\x00\x00\x00\x00\x00"),
    "gzip bomb": ("a.nii.gz", gzip.compress(NIFTI + bytes(2**26))),
    "two billion voxels": ("a.nii", changed(42, b"\xff\x7f\xff\x7f\xff\x7f")),
    "negative size": ("a.nii", changed(42, b"\xff\xff")),
    "no type": ("a.nii", changed(70, b"\x07\x00")),
    "no place": ("a.nii", changed(252, bytes(4))),
    "infinite affine": ("a.nii", changed(280, b"\x00\x00\x80\x7f")),
    "NIfTI named NRRD": ("a.nrrd", NIFTI),
    "NRRD with a file elsewhere": (
        "a.nrrd",
        b"NRRD0004\ntype: short\ndimension: 3\nsizes: 3 4 5\nendian: little\nencoding: raw\ndata file: /etc/passwd\n\n",
    ),
    "NRRD without an end": ("a.nrrd", b"NRRD0004\n" + b"#" * 2**21),
    "no archive": ("a.zip", b"PK\x03\x04" + bytes(100)),
    "empty archive": ("a.zip", zipped([])),
    "archive without DICOM": ("a.zip", zipped([("a.txt", b"hello")])),
    "damaged slice": ("a.zip", zipped([("a.dcm", bytes(128) + b"DICM" + bytes(500))])),
    "traversal": ("a.zip", zipped([("../../evil.dcm", bytes(128) + b"DICM")])),
    "absolute": ("a.zip", zipped([("/tmp/evil.dcm", bytes(128) + b"DICM")])),
    "backslashes": ("a.zip", zipped([("..\\evil.dcm", bytes(128) + b"DICM")])),
    "drive": ("a.zip", zipped([("C:evil.dcm", bytes(128) + b"DICM")])),
    "link": ("a.zip", zipped([(link("a.dcm"), "/etc/passwd")])),
    "bomb": ("a.zip", bomb()),
    "liar": ("a.zip", liar()),
    "60,000 names": ("a.zip", many_names()),
    "archive in an archive": ("a.zip", zipped([("b.zip", zipped([("a.dcm", b"x")]))])),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_uploads_are_refused_in_one_line(client, kind):
    name, content = MALFORMED[kind]
    answer = put(client, name, content)
    assert 400 <= answer.status_code < 500, answer.text
    said = answer.json()
    assert said.keys() == {"error", "remedy"}
    for line in said.values():
        assert line
        assert "\n" not in line
        assert not re.search(r"/tmp|fheat-studio-|Traceback|object at", line)
    assert left(client) == []


TRAVERSAL = [
    "../evil.nii", "..", ".", "/etc/passwd.nii", "a/b.nii", "..\\evil.nii", "C:evil.nii", "a\x00.nii", "a\r\nb.nii",
    "\u202eiin.a", ".hidden.nii", "x" * 4096 + ".nii", "", "%2e%2e/evil.nii", "a:b.nii",
]  # fmt: skip


@pytest.mark.parametrize("name", TRAVERSAL, ids=range(len(TRAVERSAL)))
def test_names_that_lead_elsewhere_are_refused(client, name):
    answer = put(client, name, NIFTI)
    assert answer.status_code == 400
    assert answer.json()["error"] == "the name is no file name of up to 200 characters"
    assert left(client) == []


@pytest.mark.parametrize(
    "text", ["../../lock", "..%00", "%2e%2e%2flock", "a\x00b", "x" * 4096, "a\r\nSet-Cookie: b=c", "'"]
)
def test_no_field_names_a_file(client, text):
    quoted = quote(text, safe="")
    for path in (
        f"/api/scans/{quoted}",
        f"/api/scans/{quoted}/image.nii.gz",
        f"/assets/{quoted}",
        f"/api/runs/{quoted}",
    ):
        assert client.get(path).status_code == 404
    assert client.get(f"/api/models/{quoted}/allocation").status_code == 404
    assert client.get(f"/api/jobs/{quoted}").status_code in (404, 422)
    assert client.get(f"/api/dataset/{quoted}/image.nii.gz").status_code in (404, 422)
    for scan, model in ((text, "mini"), ("a", text)):
        assert client.post("/api/jobs", json={"scan": scan, "model": model}).status_code == 404


def test_other_endings_are_refused(client):
    for name in ("a.dcm", "a.png", "nii", "a.nii.gz.exe", "a.tar.gz", "a.h5"):
        assert put(client, name, NIFTI).status_code == 415


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_too_large_is_refused_with_and_without_its_length(settings, launcher, declared):
    with client_of(replace(settings, limits=Limits(body=10_000)), launcher) as client:
        content = NIFTI * 40
        answer = put(client, "a.nii", content if declared else iter([content[:6000], content[6000:]]))
        assert answer.status_code == 413
        assert "10,000 bytes" in answer.json()["error"]
        assert left(client) == []
        assert put(client, "a.nii", NIFTI).status_code == 201


def test_voxels_are_counted_before_they_are_unpacked(settings, launcher, monkeypatch):
    limits = Limits(voxel_bytes=1000)
    with client_of(replace(settings, limits=limits), launcher) as client:
        big = nibabel.Nifti1Image(np.zeros((8, 8, 8), np.int16), np.eye(4)).to_bytes()
        for name, content in (("a.nii", big), ("a.nii.gz", gzip.compress(big)), ("a.zip", bomb())):
            answer = put(client, name, content)
            assert answer.status_code == 422
            assert "over the limit of 1,000" in answer.json()["error"]
    with client_of(replace(settings, limits=Limits(voxels=500)), launcher) as client:
        assert "over the limit of 500" in put(client, "a.nii", big).json()["error"]
        assert left(client) == []


def test_the_service_holds_no_more_than_it_may(settings, launcher):
    with client_of(replace(settings, limits=Limits(scans=2)), launcher) as client:
        assert [put(client, "a.nii", NIFTI).status_code for _ in range(3)] == [201, 201, 503]
        assert put(client, "a.nii", NIFTI).headers["retry-after"] == "5"
    with client_of(replace(settings, limits=Limits(kept=100)), launcher) as client:
        assert [put(client, "a.nii", NIFTI).status_code for _ in range(2)] == [201, 503]


def test_a_full_disk_is_no_internal_error(client, monkeypatch):
    async def full(self, stream, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Files, "receive", full)
    answer = put(client, "a.nii", NIFTI)
    assert answer.status_code == 503
    assert left(client) == []


@pytest.mark.parametrize("kind", ["<i8", "<u8", "<f8", "<u4", ">i2", "<i1"])
def test_all_types_are_kept_with_their_values(client, kind):
    data = np.array([0, 1, 100, 127], kind).reshape(1, 2, 2)
    image = nibabel.Nifti1Image(data, np.eye(4), dtype=data.dtype)
    scan = client.service.scans.get(put(client, "a.nii", image.to_bytes()).json()["scan"])
    assert np.array_equal(read_nifti(scan.file).data, data)
    client.delete(f"/api/scans/{scan.id}")


def test_a_viewer_gets_every_nth_voxel_of_a_large_scan(client, monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "VIEWED", 100)
    data = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
    scan = put(client, "a.nii", nibabel.Nifti1Image(data, np.diag([1.0, 2, 3, 1])).to_bytes()).json()
    assert scan["shape"] == [8, 9, 10]
    (tmp_path / "a.nii.gz").write_bytes(client.get(f"/api/scans/{scan['scan']}/image.nii.gz").content)
    shown = read_nifti(tmp_path / "a.nii.gz")
    assert np.array_equal(shown.data, data[::2, ::2, ::2])
    assert shown.spacing == (2.0, 4.0, 6.0)
    assert np.array_equal(coarser(shown, 1000).data, shown.data)
    client.delete(f"/api/scans/{scan['scan']}")
