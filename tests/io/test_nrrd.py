"""NRRD: exact voxels, the right place in space, no damaged file that passes."""

import gzip
import sys
import tracemalloc

import numpy as np
import pytest

from fheat.io.nrrd import read_nrrd, write_nrrd
from fheat.io.volume import Volume
from tests.grids import affines
from tests.refusals import refused

nrrd = pytest.importorskip("nrrd")

TO_RAS = {"left-posterior-superior": [-1, -1, 1], "LPS": [-1, -1, 1], "LAS": [-1, 1, 1], "RAS": [1, 1, 1]}


def scan(shape=(9, 8, 7), dtype=np.int16, seed=0):
    return (1000 * np.random.default_rng(seed).random(shape)).astype(dtype)


def save(path, data, affine=None, *, space="left-posterior-superior", **fields):
    """Write with pynrrd what lies as the RAS `affine` says."""
    stored = np.diag([*TO_RAS[space], 1.0]) @ (np.eye(4) if affine is None else affine)
    header = {"space": space, "space directions": stored[:3, :3].T, "space origin": stored[:3, 3], **fields}
    nrrd.write(str(path), data, header)
    return path


def refusal(path, **options):
    return str(refused(read_nrrd, path, **options))


@pytest.mark.parametrize("space", TO_RAS)
def test_every_orientation_comes_back(tmp_path, space):
    for count, (affine, spacing) in enumerate(affines()):
        if count % 9:
            continue
        volume = read_nrrd(save(tmp_path / "scan.nrrd", scan(), affine, space=space))
        assert np.abs(volume.affine - affine).max() < 1e-9
        assert volume.spacing == pytest.approx(spacing)
        assert np.array_equal(volume.data, scan())


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "f4", "f8", ">i2", ">f4"])
@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_types_and_encodings(tmp_path, dtype, encoding):
    data = scan(dtype=dtype)
    volume = read_nrrd(save(tmp_path / "a.nrrd", data, encoding=encoding))
    assert volume.data.dtype == data.dtype.newbyteorder("=")
    assert np.array_equal(volume.data, data)
    assert np.array_equal(volume.data, nrrd.read(str(tmp_path / "a.nrrd"))[0])


def test_every_truncation_and_flipped_bit_of_packed_voxels_is_detected(tmp_path):
    path = save(tmp_path / "a.nrrd", scan(), encoding="gzip")
    content = path.read_bytes()
    start = content.index(b"\n\n") + 2
    for keep in [0, 1, 4, start - 1, start, start + 5, *range(start + 20, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:keep])
        assert path.name in refusal(path)
    for place in range(start + 10, len(content), 11):
        changed = bytearray(content)
        changed[place] ^= 16
        path.write_bytes(changed)
        refusal(path)


def test_raw_voxels_must_be_all_there_and_no_more(tmp_path):
    path = save(tmp_path / "a.nrrd", scan(), encoding="raw")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert "declares 1,008 bytes of voxels and holds 1,007" in refusal(path)
    path.write_bytes(content + b"\0")
    assert "holds more" in refusal(path)


def test_bombs_are_refused_before_they_unpack(tmp_path):
    path = save(tmp_path / "a.nrrd", np.zeros((4, 4, 4), np.uint8), encoding="gzip")
    head = path.read_bytes().split(b"\n\n")[0] + b"\n\n"
    path.write_bytes(head + gzip.compress(bytes(2**26)))
    assert "declares 64 bytes of voxels and holds more" in refusal(path)
    path.write_bytes(head.replace(b"sizes: 4 4 4", b"sizes: 4000 4000 4000"))
    assert "declares 64,000,000,000 bytes" in refusal(path)
    assert "over the limit of 10" in refusal(path, limit=10)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"space: left-posterior-superior", b"space: scanner-xyz", "field"),
        (b"space: left-posterior-superior\n", b"", "do not say where it lies"),
        (b"space directions: (1,0,0)", b"space directions: (0,0,0)", "spacing"),
        (b"space origin: (0,0,0)", b"space origin: (nan,0,0)", "NaN"),
        (b"type: int16", b"type: block", "field type"),
        (b"endian: little", b"endian: middle", "field endian"),
        (b"encoding: gzip", b"encoding: bzip2", "field encoding"),
        (b"dimension: 3", b"dimension: 2", "field dimension is 2, not 3"),
        (b"sizes: 9 8 7", b"sizes: 9 56", "field sizes has 2 entries"),
        (b"encoding: gzip", b"encoding: gzip\ndata file: other.raw", "field data file"),
        (b"encoding: gzip", b"encoding: gzip\nbyte skip: 4", "field byte skip"),
        (b"NRRD000", b"MRRD000", "does not begin with NRRD0001"),
    ],
)
def test_bad_fields_are_refused(tmp_path, old, new, says):
    path = save(tmp_path / "a.nrrd", scan(), np.diag([-1.0, -1.0, 1.0, 1.0]))
    content = path.read_bytes()
    head, rest = content.split(b"\n\n", 1)
    head = head.replace(b"1.0", b"1").replace(b"0.0", b"0")
    assert old in head, head
    path.write_bytes(head.replace(old, new) + b"\n\n" + rest)
    assert says in refusal(path)


def test_other_refusals(tmp_path, monkeypatch):
    nan = scan(dtype=np.float32)
    nan[1, 2, 3] = np.nan
    assert "holds 1 voxels that are NaN" in refusal(save(tmp_path / "nan.nrrd", nan))
    assert "cannot be read" in refusal(tmp_path / "missing.nrrd")
    assert "is a folder" in refusal(tmp_path)
    monkeypatch.setitem(sys.modules, "nrrd", None)
    assert "needs the package pynrrd; install fheat[nrrd]" in refusal(tmp_path / "nan.nrrd")


def fields_changed(tmp_path, *changes, data=None):
    """Write a raw file with plain numbers in its header, and replace texts in that."""
    path = save(tmp_path / "a.nrrd", scan() if data is None else data, np.diag([-1.0, -1.0, 1.0, 1.0]), encoding="raw")
    head, rest = path.read_bytes().split(b"\n\n", 1)
    head = head.replace(b"1.0", b"1").replace(b"0.0", b"0")
    for old, new in changes:
        assert old in head, head
        head = head.replace(old, new)
    path.write_bytes(head + b"\n\n" + rest)
    return path


UNITS = b"encoding: raw"


@pytest.mark.parametrize(
    ("units", "factor"), [("mm", 1), ("cm", 10), ("m", 1000), ("um", 0.001), ("Millimeters", 1), ("", 1)]
)
def test_units_become_millimetres(tmp_path, units, factor):
    path = fields_changed(tmp_path, (UNITS, UNITS + f'\nspace units: "{units}" "{units}" "{units}"'.encode()))
    volume = read_nrrd(path)
    assert volume.spacing == pytest.approx((factor,) * 3)
    assert np.array_equal(volume.data, scan())


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ('space units: "inch" "inch" "inch"', "field space units is 'inch', not mm, cm, m or um"),
        ('space units: "mm" "mm"', "field space units has 2 entries"),
        ('Space Units: "cm" "cm" "cm"', "field 'Space Units' stands for 'space units'"),
        ('units: "cm" "cm" "cm"', "fields units"),
        ("spacings: 1 1 2", "field spacings [1.0, 1.0, 2.0] contradicts space directions"),
        ("spacings: 1 1", "field spacings has 2 entries"),
        ("space dimension: 4", "field space dimension is 4"),
        ("lineskip: 1", "field lineskip is 1"),
        ("Line Skip: 1", "field 'Line Skip' stands for 'line"),
    ],
)
def test_fields_that_contradict_others_are_refused(tmp_path, field, says):
    assert says in refusal(fields_changed(tmp_path, (UNITS, UNITS + b"\n" + field.encode())))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"kinds: domain domain domain", b"kinds: domain domain", "field kinds has 2 entries"),
        (b"kinds: domain domain domain", b"kinds: domain domain vector", "field kinds is"),
        (b"space origin: (0,0,0)", b"space origin: (0,0)", "field space origin has 2 entries"),
        (b"sizes: 9 8 7", b"sizes: 9 8 7 1", "field sizes has 4 entries"),
        (b"sizes: 9 8 7", b"sizes: 9 8 6", "declares 864 bytes of voxels and holds more"),
        (b"sizes: 9 8 7", b"sizes: 9 8 8", "declares 1,152 bytes of voxels and holds 1,008"),
        (b"sizes: 9 8 7", b"sizes: 9 8 -7", "field sizes gives shape"),
        (b"type: int16", b"type: int32", "declares 2,016 bytes of voxels and holds 1,008"),
        (b"type: int16", b"type: int8", "declares 504 bytes of voxels and holds more"),
        (b"endian: little\n", b"", "field endian is 'missing'"),
    ],
)
def test_counts_and_lengths_must_agree(tmp_path, old, new, says):
    kinds = (UNITS, UNITS + b"\nkinds: domain domain domain")
    head = fields_changed(tmp_path).read_bytes().split(b"\n\n")[0]
    first = () if b"kinds:" in head else (kinds,)
    assert says in refusal(fields_changed(tmp_path, *first, (old, new)))


def test_a_header_without_end_is_refused_after_a_megabyte(tmp_path):
    (tmp_path / "a.nrrd").write_bytes(b"NRRD0004\n" + b"# " + b"x" * 2**21)
    assert "has no empty line after its header within 1,048,576 bytes" in refusal(tmp_path / "a.nrrd")


def test_unpacking_ends_one_byte_after_what_is_declared(tmp_path):
    path = save(tmp_path / "a.nrrd", np.zeros((4, 4, 4), np.uint8), encoding="gzip")
    head = path.read_bytes().split(b"\n\n")[0] + b"\n\n"
    path.write_bytes(head + gzip.compress(bytes(2**25)))
    tracemalloc.start()
    assert "declares 64 bytes of voxels and holds more" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()
    path.write_bytes(head + gzip.compress(bytes(64)) + b"x")
    assert "gzip stream is damaged" in refusal(path)


def test_what_is_written_is_read_back_and_pynrrd_agrees(tmp_path):
    for count, (affine, _) in enumerate(affines()):
        if count % 9:
            continue
        write_nrrd(Volume(scan(seed=count), affine), tmp_path / "scan.nrrd")
        volume = read_nrrd(tmp_path / "scan.nrrd")
        assert np.array_equal(volume.data, scan(seed=count))
        assert np.array_equal(volume.affine, affine)  # to the last bit
        data, header = nrrd.read(str(tmp_path / "scan.nrrd"))
        assert np.array_equal(data, scan(seed=count))
        assert header["space"] == "left-posterior-superior"
        assert np.array_equal(header["space directions"], (np.diag([-1, -1, 1]) @ affine[:3, :3]).T)
        assert np.array_equal(header["space origin"], [-1, -1, 1] * affine[:3, 3])


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8", ">i2", "?"])
def test_every_type_is_written(tmp_path, kind):
    data = scan(dtype=np.dtype(kind))
    write_nrrd(Volume(np.ascontiguousarray(data), np.eye(4)), tmp_path / "a.nrrd")
    volume = read_nrrd(tmp_path / "a.nrrd")
    assert np.array_equal(volume.data, data)
    assert volume.data.dtype == (np.uint8 if kind == "?" else np.dtype(kind).newbyteorder("="))


def test_equal_volumes_give_equal_files_and_simpleitk_puts_them_in_the_same_place(tmp_path):
    itk = pytest.importorskip("SimpleITK")
    affine = next(affines())[0]
    for name in ("a.nrrd", "b.nrrd"):
        write_nrrd(Volume(scan(), affine), tmp_path / name)
    assert (tmp_path / "a.nrrd").read_bytes() == (tmp_path / "b.nrrd").read_bytes()
    image = itk.ReadImage(str(tmp_path / "a.nrrd"))
    assert np.array_equal(itk.GetArrayFromImage(image).transpose(2, 1, 0), scan())
    place = image.TransformContinuousIndexToPhysicalPoint((3.0, 2.0, 1.0))
    assert np.allclose(np.multiply(place, [-1, -1, 1]), (affine @ [3, 2, 1, 1])[:3])


def test_what_nrrd_does_not_hold_is_refused(tmp_path):
    for data in (np.zeros((2, 2, 2, 2), np.uint8), np.zeros((2, 2, 2), np.int64)):
        assert "cannot hold" in str(refused(write_nrrd, Volume(data, np.eye(4)), tmp_path / "a.nrrd"))
    assert "ending" in str(refused(write_nrrd, Volume(np.zeros((2, 2, 2), np.uint8), np.eye(4)), tmp_path / "a.nii"))
    assert list(tmp_path.iterdir()) == []
