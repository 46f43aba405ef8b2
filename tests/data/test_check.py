"""The checker: a clean dataset has no problem, and a dataset with one fault has exactly that one."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fheat import BadInput
from fheat.cli import data, data_check
from fheat.cli.main import UsageError
from fheat.data.check import check
from fheat.data.layouts import open_dataset
from fheat.io import Volume, write_nifti

AFFINE = np.diag([0.5, 0.75, 2.0, 1.0])
SHAPE = (10, 9, 8)


def scan(seed, shape=SHAPE):
    return (100 * np.random.default_rng(seed).normal(size=shape)).astype(np.int16)


def mask(shape=SHAPE):
    label = np.zeros(shape, np.uint8)
    label[2:5, 2:6, 3:5] = 1
    return label


def put(path, voxels, affine=AFFINE):
    path.parent.mkdir(exist_ok=True)
    write_nifti(Volume(voxels, np.asarray(affine, np.float64)), path)


def describe(root, **changes):
    content = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "organ": 1}, "file_ending": ".nii.gz"}
    (root / "dataset.json").write_text(json.dumps(content | {"numTraining": 3} | changes))


@pytest.fixture
def root(tmp_path):
    """Three labelled training scans, one declared unlabelled, one for testing; nothing wrong."""
    describe(tmp_path)
    for seed, name in enumerate("abc"):
        put(tmp_path / "imagesTr" / f"{name}_0000.nii.gz", scan(seed))
        put(tmp_path / "labelsTr" / f"{name}.nii.gz", mask())
    put(image(tmp_path, "u", "imagesUn"), scan(10))
    put(image(tmp_path, "t", "imagesTs"), scan(11))
    return tmp_path


def found(root, **options):
    return [(p.severity, p.case, p.field, p.reason) for p in check(open_dataset(root), **options).problems]


def test_a_clean_dataset(root):
    seen = []
    report = check(open_dataset(root), workers=2, progress=lambda done, total: seen.append((done, total)))
    assert report.problems == ()
    assert seen == [(count, 5) for count in range(1, 6)]
    assert [(row.case, row.split) for row in report.rows] == [
        ("a", "train"),
        ("b", "train"),
        ("c", "train"),
        ("u", "train"),
        ("t", "test"),
    ]
    first = report.rows[0]
    assert (first.channels, first.shape, first.spacing, first.orientation) == (1, SHAPE, (0.5, 0.75, 2.0), "RAS")
    assert first.labels == {0: 720 - 24, 1: 24}
    assert report.rows[3].labels == "unlabelled"
    assert len({row.content for row in report.rows}) == 5
    assert json.loads(json.dumps(report.to_json()))["cases"][0]["labels"] == {"0": 696, "1": 24}


@settings(max_examples=25)
@given(
    count=st.integers(1, 4),
    shape=st.tuples(*[st.integers(2, 12)] * 3),
    channels=st.integers(1, 3),
    spacing=st.tuples(*[st.floats(0.1, 10)] * 3),
    signs=st.tuples(*[st.sampled_from((-1, 1))] * 3),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    workers=st.integers(1, 3),
)
def test_any_clean_dataset_has_no_problem(tmp_path_factory, count, shape, channels, spacing, signs, dtype, workers):
    root = tmp_path_factory.mktemp("clean")
    names = {str(index): f"channel {index}" for index in range(channels)}
    describe(root, channel_names=names, numTraining=count)
    affine = np.diag([*np.multiply(spacing, signs), 1.0])
    affine[:3, 3] = 10 * np.array(spacing)
    for case in range(count):
        for channel in range(channels):
            voxels = np.arange(np.prod(shape)).reshape(shape) % 50 + 10 * case + channel
            put(root / "imagesTr" / f"{case}_000{channel}.nii.gz", voxels.astype(dtype), affine)
        put(root / "labelsTr" / f"{case}.nii.gz", np.indices(shape).sum(0).astype(dtype) % 2, affine)
    assert found(root, workers=workers) == []


def image(root, name, folder="imagesTr"):
    return root / folder / f"{name}_0000.nii.gz"


def label(root, name):
    return root / "labelsTr" / f"{name}.nii.gz"


def move(**places):
    """AFFINE with entries replaced, such as x3=1.0 for the origin along x."""
    affine = AFFINE.copy()
    for place, value in places.items():
        affine["xyz".index(place[0]), int(place[1])] = value
    return affine


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 8
    path.write_bytes(content)


def not_a_number(path):
    voxels = scan(1).astype(np.float32)
    voxels[1, 2, 3] = np.nan
    put(path, voxels)


def fractional(path):
    label = mask().astype(np.float32)
    label[0, 0, 0] = 0.25
    put(path, label)


FAULTS = {
    "shape": (
        lambda r: put(label(r, "b"), mask((10, 9, 7))),
        ("error", "b", "shape", "label has (10, 9, 7), the image (10, 9, 8)"),
    ),
    "spacing by 1 %": (
        lambda r: put(label(r, "b"), mask(), move(z2=2.02)),
        ("error", "b", "spacing", "label has (0.5, 0.75, 2.02), the image (0.5, 0.75, 2)"),
    ),
    "origin by 1 mm": (
        lambda r: put(label(r, "b"), mask(), move(y3=1.0)),
        ("error", "b", "origin", "label has (0, 1, 0), the image (0, 0, 0)"),
    ),
    "orientation": (
        lambda r: put(label(r, "b"), mask(), move(x0=-0.5)),
        ("error", "b", "orientation", "label has LAS, the image RAS"),
    ),
    "damaged image": (
        lambda r: damage(image(r, "b")),
        ("error", "b", "image", "gzip stream is damaged"),
    ),
    "damaged label": (
        lambda r: damage(label(r, "b")),
        ("error", "b", "label", "gzip stream is damaged"),
    ),
    "not an image": (
        lambda r: image(r, "b").write_bytes(gzip.compress(b"hello" * 100)),
        ("error", "b", "image", "is not a NIfTI file"),
    ),
    "NaN": (
        lambda r: not_a_number(image(r, "b")),
        ("error", "b", "image", "holds 1 voxels that are NaN or infinite"),
    ),
    "empty label": (
        lambda r: put(label(r, "b"), 0 * mask()),
        ("warning", "b", "values", "label holds only background"),
    ),
    "missing label": (
        lambda r: label(r, "b").unlink(),
        ("error", "b", "label", "has no label and is not declared unlabelled"),
    ),
    "undeclared value": (
        lambda r: put(label(r, "b"), 3 * mask()),
        ("error", "b", "values", "label holds [3], the dataset declares [0, 1]"),
    ),
    "fractional label": (
        lambda r: fractional(label(r, "b")),
        ("error", "b", "values", "label holds 1 values that are no label numbers, such as 0.25"),
    ),
    "id twice": (
        lambda r: put(image(r, "b", "imagesUn"), scan(20)),
        ("error", "b", "id", "is listed 2 times"),
    ),
    "id in two splits": (
        lambda r: put(image(r, "b", "imagesTs"), scan(20)),
        ("error", "b", "split", "is in the splits test and train"),
    ),
    "case in two splits": (
        lambda r: put(image(r, "b", "imagesTs"), scan(1)),
        ("error", "b", "split", "is in the splits test and train"),
    ),
    "content twice": (
        lambda r: put(image(r, "u", "imagesUn"), scan(1)),
        ("warning", "u", "content", "has the voxels of b (train), itself in train"),
    ),
    "content twice in another type": (
        lambda r: put(image(r, "u", "imagesUn"), scan(1).astype(np.float64)),
        ("warning", "u", "content", "has the voxels of b (train), itself in train"),
    ),
    "leak": (
        lambda r: put(image(r, "t", "imagesTs"), scan(1)),
        ("error", "t", "content", "has the voxels of b (train), itself in test"),
    ),
    "numTraining": (
        lambda r: describe(r, numTraining=4),
        ("warning", "", "numTraining", "says 4 and there are 3"),
    ),
    "label without image": (
        lambda r: put(label(r, "d"), mask()),
        ("error", "d", "image", "is a label without an image"),
    ),
    "constant image": (
        lambda r: put(image(r, "b"), np.full(SHAPE, 7, np.int16)),
        ("error", "b", "values", "holds the value 7 everywhere"),
    ),
    "a spacing in metres": (
        lambda r: put(image(r, "u", "imagesUn"), scan(10), np.diag([500, 750, 900, 1])),
        ("error", "u", "spacing", "spacing x is 500 mm, outside 0.0001 to 50 mm"),
    ),
    "a spacing of a micrometre": (
        lambda r: put(image(r, "u", "imagesUn"), scan(10), np.diag([0.001, 1, 1, 1])),
        ("warning", "u", "spacing", "spacing x (mm) is 0.001"),
    ),
    "channel too many": (
        lambda r: put(image(r, "b"), scan(1, (*SHAPE, 2))),
        ("error", "b", "channels", "has 2 channels, the dataset declares 1"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_found_and_nothing_else(root, fault):
    make, (severity, case, field, reason) = FAULTS[fault]
    make(root)
    ((*known, said),) = found(root)
    assert known == [severity, case, field]
    assert said.startswith(reason)


def test_all_faults_are_found_at_once(root):
    """One problem does not hide another, in one case or across them."""
    put(label(root, "a"), 3 * mask(), move(z2=2.02))
    damage(image(root, "b"))
    label(root, "c").unlink()
    describe(root, numTraining=9)
    assert [(case, field) for _, case, field, _ in found(root)] == [
        ("", "numTraining"),
        ("a", "spacing"),
        ("a", "values"),
        ("b", "image"),
        ("c", "label"),
    ]


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_copy_stored_in_another_orientation_is_a_leak(root, axes, order):
    """The same voxels at the same places, axes flipped and in another order: one scan in training and in testing."""
    affine = AFFINE.copy()
    for axis in axes:
        affine[:3, 3] += affine[:3, axis] * (SHAPE[axis] - 1)
        affine[:3, axis] *= -1
    affine = affine[:, [*order, 3]]
    put(image(root, "t", "imagesTs"), np.flip(scan(1), axes).transpose(order).astype(np.float32), affine)
    assert found(root) == [("error", "t", "content", "has the voxels of b (train), itself in test")]


def test_the_same_numbers_in_another_shape_or_mirrored_in_place_are_another_scan(root):
    put(image(root, "t", "imagesTs"), scan(1).reshape((9, 10, 8), order="F"))
    put(image(root, "u", "imagesUn"), scan(1)[::-1])
    assert found(root) == []


def test_channels_on_two_grids_and_empty_channels(root):
    describe(root, channel_names={"0": "T1", "1": "T2"}, numTraining=3)
    for place, name in (("imagesTr", "a"), ("imagesTr", "b"), ("imagesTr", "c"), ("imagesUn", "u"), ("imagesTs", "t")):
        put(root / place / f"{name}_0001.nii.gz", scan(ord(name)))
    assert found(root) == []
    put(root / "imagesTr" / "a_0001.nii.gz", np.zeros(SHAPE, np.int16))
    put(root / "imagesTr" / "b_0001.nii.gz", scan(5), move(x3=1.0))
    (root / "imagesTr" / "c_0001.nii.gz").unlink()
    assert found(root) == [
        ("warning", "a", "values", "channels [1] hold one value everywhere"),
        ("error", "b", "image", "field origin is (1, 0, 0), that of the first channel (0, 0, 0)"),
        ("error", "c", "channels", "has 1 channels, the dataset declares 2"),
    ]


def test_folder_of_images_and_empty_folder(tmp_path, capsys):
    for seed, name in enumerate("ab"):
        put(tmp_path / "scans" / f"{name}.nii.gz", scan(seed))
    assert [(case, field) for _, case, field, _ in found(tmp_path / "scans")] == [("a", "label"), ("b", "label")]
    describe(tmp_path, numTraining=0)
    assert found(tmp_path) == [("error", "", "cases", "has no cases")]
    with pytest.raises(BadInput):
        data.run(["check", str(tmp_path)])
    first, last = capsys.readouterr().out.splitlines()  # and no table of no rows
    assert first.startswith("error: cases: ")
    assert last == "0 cases, 1 errors, 0 warnings."


def test_h5_lists(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "data").mkdir()
    for seed, name in enumerate("abc"):
        with h5py.File(tmp_path / "data" / f"{name}.h5", "w") as file:
            file["image"] = scan(seed)
            if name != "b":
                file["label"] = mask().astype(np.uint16)
    (tmp_path / "train.txt").write_text("a\nb\nmissing\n")
    (tmp_path / "test.txt").write_text("c\n")
    report = check(open_dataset(tmp_path))
    assert report.rows[0].labels == {0: 696, 1: 24}
    assert [(p.case, p.field, p.reason) for p in report.problems] == [
        ("b", "label", "has no label and is not declared unlabelled"),
        ("missing", "image", "cannot be read (No such file or directory)"),
    ]


def test_memory_holds_one_case_per_worker(tmp_path):
    """40 scans of 4 MiB: the peak grows by a few scans, not by all."""
    describe(tmp_path, numTraining=40)
    voxels = np.zeros((128, 128, 64), np.float32)
    for case in range(40):
        voxels[0, 0, 0] = case + 1
        put(tmp_path / "imagesTr" / f"{case}_0000.nii.gz", voxels)
        put(tmp_path / "labelsTr" / f"{case}.nii.gz", mask(voxels.shape))
    code = (
        "import resource, sys\nfrom fheat.data.check import check\nfrom fheat.data.layouts import open_dataset\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "dataset = open_dataset(sys.argv[1])\nbefore = peak()\nreport = check(dataset, workers=2)\n"
        "print(len(report.rows), len(report.problems), peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    rows, problems, grown = map(int, done.stdout.split())
    assert (rows, problems) == (40, 0)
    assert grown < 80  # MiB; all images and labels together are 200


def test_the_verb_prints_the_table_and_succeeds(root, capsys):
    data.run(["check", str(root)])
    out, err = capsys.readouterr()
    assert "0: 696, 1: 24" in out
    assert "0.5x0.75x2" in out
    assert "unlabelled" in out
    assert out.endswith("5 cases, 0 errors, 0 warnings.\n")
    assert err == ""


def test_the_verb_prints_everything_before_it_fails(root, capsys):
    put(label(root, "b"), 3 * mask())
    put(label(root, "c"), 0 * mask())
    with pytest.raises(BadInput, match="1 errors in 1 of 5 cases; correct what is listed") as caught:
        data.run(["check", str(root), "--workers", "1"])
    assert caught.value.path == root
    out = capsys.readouterr().out
    assert f"error: b: values: {label(root, 'b')}: label holds [3], the dataset declares [0, 1]; map" in out
    assert "warning: c: values: " in out
    assert out.endswith("5 cases, 1 errors, 1 warnings.\n")
    with pytest.raises(BadInput):
        data.run(["check", str(root), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert [problem["severity"] for problem in result["problems"]] == ["error", "warning"]
    assert result["layout"] == "nnU-Net raw"


def test_warnings_alone_do_not_fail(root, capsys):
    put(label(root, "c"), 0 * mask())
    data.run(["check", str(root)])
    assert "0 errors, 1 warnings" in capsys.readouterr().out


def test_help_and_wrong_words(root, capsys):
    with pytest.raises(SystemExit) as stop:
        data.run(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in ("import", "check", "prepare", "phantom"))
    for words, says in (
        ([], "use one of import, check, prepare, phantom"),
        (["chek"], "no verb 'chek': use one of import, check, prepare, phantom"),
        (["check", str(root), "--workers", "0"], "--workers is 0"),
        (["check", str(root), "--wrkers", "1"], "wrkers"),
    ):
        with pytest.raises(UsageError, match=says):
            data.run(words)
    with pytest.raises(SystemExit) as stop:
        data.run(["check", "--help"])
    assert stop.value.code == 0
    assert "Example: fheat data check" in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="a terminal is made with pty")
def test_progress_is_shown_on_a_terminal(root, monkeypatch, capsys):
    import pty

    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setenv("TERM", "xterm")
        data_check.run([str(root)])
        terminal.flush()
        shown = os.read(reader, 100_000).decode()
    os.close(reader)
    assert "reading" in shown
    assert "reading" not in capsys.readouterr().out
