"""Contrast over a dataset in the layout of MSD Task01: nested cubes with steps of known height."""

import errno
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from fheat.cli.main import main
from fheat.io.nifti import write_nifti
from fheat.io.volume import Volume
from fheat.studies.contrast import BETWEEN

CHANNELS = ("FLAIR", "T1w", "T1gd", "T2w")
CUBES = {1: (2, 14), 2: (4, 12), 3: (6, 10)}  # label: first and last voxel of its cube along each axis


def cube_mean(side, step):
    """Mean gradient on the shell of a cube that stands `step` above what is around it, on a grid of 1 mm."""
    face, edge, corner = 6 * (side - 2) ** 2, 12 * (side - 2), 8
    return step / 2 * (face + edge * 2**0.5 + corner * 3**0.5) / (face + edge + corner)


def heights(case):
    """Steps from outside to edema, to core, to enhancing: per channel, other in every case."""
    return [(10.0, 4 + case, 2.0), (1.0, 1.0, 1.0), (5.0, 3.0, 20.0 + case), (7.0, 6.0, 0.0)]


@pytest.fixture
def task(tmp_path):
    root, training = tmp_path / "Task01", []
    for case in range(6):
        label = np.zeros((16, 16, 16), np.uint8)
        scan = np.zeros((16, 16, 16, 4), np.float32)
        for value, (first, last) in CUBES.items():
            label[first:last, first:last, first:last] = value
            for channel, steps in enumerate(heights(case)):
                scan[first:last, first:last, first:last, channel] += steps[value - 1]
        if case == 5:
            label[label == 3] = 2  # no enhancing tumour
        name = f"BRATS_{case:03d}.nii.gz"
        write_nifti(Volume(scan, np.eye(4)), root / "imagesTr" / name)
        write_nifti(Volume(label, np.eye(4)), root / "labelsTr" / name)
        training.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    described = {
        "name": "BRATS",
        "modality": {str(index): name for index, name in enumerate(CHANNELS)},
        "labels": {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"},
        "training": training,
        "test": [],
    }
    (root / "dataset.json").write_text(json.dumps(described))
    return root


def test_gradients_are_those_of_the_steps(task, tmp_path, capsys):
    out = tmp_path / "figures"
    assert main(["data", "contrast", str(task), "--figures", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "contrast.json").read_text())
    assert found["regions"] == {"whole_tumour": [1, 2, 3], "tumour_core": [2, 3], "enhancing_tumour": [3]}
    for case in range(5):
        for channel, steps in zip(CHANNELS, heights(case), strict=True):
            row = found["cases"][f"BRATS_{case:03d}"][channel]
            expected = [cube_mean(side, step) for side, step in zip((12, 8, 4), steps, strict=True)]
            assert list(row.values()) == pytest.approx(expected, rel=1e-6)
    assert found["cases"]["BRATS_005"]["T1gd"]["enhancing_tumour"] is None
    tests = {test["modality"]: test for test in found["tests"]}
    assert all(test["n"] == 5 for test in tests.values())
    core, rim = cube_mean(8, 3.0), np.mean([cube_mean(4, 20.0 + case) for case in range(5)])
    assert tests["T1gd"]["ratio"] == pytest.approx(rim / core, rel=1e-6)
    assert tests["T1gd"]["p"] == 2 / 2**5
    assert tests["T2w"]["second_mean"] == 0
    assert tests["FLAIR"]["ratio"] < 1
    assert tests["FLAIR"]["p_holm"] == pytest.approx(4 * 2 / 2**5)


def test_the_figure_redraws_from_its_numbers(task, tmp_path, capsys):
    assert main(["data", "contrast", str(task), "--figures", str(tmp_path / "a"), "--cases", "4"]) == 0
    first = capsys.readouterr().out
    assert "tumour_core" in first.splitlines()[0]
    assert first.splitlines()[3].split()[:2] == ["T1gd", "4"]
    stored = tmp_path / "a" / "contrast.json"
    assert main(["data", "contrast", "--from", str(stored), "--figures", str(tmp_path / "b")]) == 0
    for name in ("contrast.svg", "contrast.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    label = ET.parse(tmp_path / "a" / "contrast.svg").getroot().attrib["aria-label"]
    assert "T1gd" in label
    assert "over 4 cases" in label
    damaged = json.loads(stored.read_text())
    del damaged["cases"]["BRATS_001"]["T1gd"]["tumour_core"]
    stored.write_text(json.dumps(damaged))
    assert main(["data", "contrast", "--from", str(stored)]) == 3
    assert "every modality and every region" in capsys.readouterr().err


def test_regions_of_ones_own(task, capsys):
    words = ["data", "contrast", str(task), "--json", "--regions", "all=1,2,3", "rim=1", "--between", "all", "rim"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["between"] == ["all", "rim"]
    assert found["tests"][0]["n"] == 6


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "DATASET is missing"),
        (["TASK", "--between", "core", "rim"], 2, "no region 'core': use two of whole_tumour"),
        (["TASK", "--regions", "a=7", "b=8", "--between", "a", "b"], 3, "no case has both a and b (a=7, b=8)"),
        (["TASK", "--between", "tumour_core", "tumour_core"], 2, "compares a region with itself"),
        (["--from", "x.json", "--cases", "3", "--between", *BETWEEN], 2, "leave out --between, --cases"),
        (["TASK", "--figures", "FILE"], 3, "is a file; give a folder to write to"),
        (["TASK", "--regions", "core"], 2, "is not NAME=VALUE"),
        (["TASK", "--cases", "0"], 2, "--cases is 0"),
        (["TASK", "--from", "x.json"], 2, "--from draws what is stored"),
        (["nowhere"], 3, "does not exist"),
    ],
)
def test_what_cannot_be_asked_is_one_line(words, code, says, task, capsys):
    stands_for = {"TASK": str(task), "FILE": str(task / "dataset.json")}
    assert main(["data", "contrast", *(stands_for.get(word, word) for word in words)]) == code
    found = capsys.readouterr()
    assert says in found.err
    assert found.err.count("\n") == 1
    assert found.out == ""


def test_files_are_written_before_anything_is_printed(task, tmp_path, monkeypatch):
    def full(*words, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    assert main(["data", "contrast", str(task), "--figures", str(tmp_path / "figures")]) == 4
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"contrast.json", "contrast.svg"}


def test_holes_in_the_image_are_refused(task, capsys):
    scan = np.full((16, 16, 16, 4), np.nan, np.float32)
    write_nifti(Volume(scan, np.eye(4)), task / "imagesTr" / "BRATS_000.nii.gz")
    assert main(["data", "contrast", str(task)]) == 3
    assert "BRATS_000.nii.gz" in capsys.readouterr().err
