"""The scans of the demo: which are held out, the grid and the crops of a folder, and folders that will not do."""

import json
import shutil

import numpy as np
import pytest

from fheat.cli.main import main
from fheat.data.phantom import write_phantoms
from fheat.experiments.demo_data import scans_of_folder, synthetic_scans
from fheat.io import Volume, write_nifti


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Ten training scans, one of them for validation, and two test scans with labels."""
    folder = tmp_path_factory.mktemp("data") / "scans"
    write_phantoms(folder, 10, test=2, shape=(40, 36, 34))
    return folder


def msd(folder, count, size=(36, 50, 33), spacing=1.0, labels=None):
    """Write a dataset of the Medical Segmentation Decathlon, with so many scans, and labels for the first ones."""
    rng = np.random.default_rng(0)
    affine = np.diag([spacing] * 3 + [1.0])
    entries = []
    for number in range(count):
        image, label = f"./imagesTr/scan_{number:03d}.nii.gz", f"./labelsTr/scan_{number:03d}.nii.gz"
        write_nifti(Volume(rng.integers(0, 99, size, np.int16), affine), folder / image)
        entries.append({"image": image})
        if labels is None or number < labels:
            write_nifti(Volume((rng.random(size) > 0.7).astype(np.uint8), affine), folder / label)
            entries[-1]["label"] = label
        else:
            entries[-1]["unlabelled"] = True
    description = {"training": entries, "labels": {"0": "background", "1": "anterior"}, "modality": {"0": "MRI"}}
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


def test_labelled_test_scans_are_held_out_and_validation_scans_choose(scans):
    data = scans_of_folder(scans, 4)
    assert [case.id for case in data.held_out] == ["phantom_t0000", "phantom_t0001"]
    assert data.apart
    assert data.fold is None
    assert (data.labelled, data.unlabelled) == (4, 5)


def test_without_them_validation_scans_are_held_out(scans, tmp_path):
    folder = shutil.copytree(scans, tmp_path / "scans")
    shutil.rmtree(folder / "labelsTs")
    data = scans_of_folder(folder, 4)
    assert [case.id for case in data.held_out] == ["phantom_0009"]
    assert not data.apart


def test_without_both_every_fifth_labelled_scan_is_held_out(tmp_path):
    data = scans_of_folder(msd(tmp_path, 10), 3)
    assert data.fold == "1/5"
    assert [case.id for case in data.held_out] == ["scan_000", "scan_005"]
    assert (data.labelled, data.unlabelled) == (3, 5)
    assert data.settings() == {"data": str(tmp_path), "labelled": 3, "patch_size": (32, 48, 32), "fold": "1/5"}


def test_large_scans_get_a_coarser_grid_and_small_ones_keep_theirs(tmp_path):
    data = scans_of_folder(msd(tmp_path / "large", 5, size=(128, 64, 30), spacing=0.5), 1)
    assert data.spacing == (1.0, 0.5, 0.5)
    assert data.patch == (48, 48, 32)
    assert scans_of_folder(msd(tmp_path / "small", 5, size=(64, 40, 36)), 1).spacing is None


def test_synthetic_scans_are_used_as_their_splits_say(tmp_path, monkeypatch):
    monkeypatch.setattr("fheat.experiments.demo_data.CASES", 5)
    monkeypatch.setattr("fheat.experiments.demo_data.TEST", 1)
    data = synthetic_scans(tmp_path / "scans", 2, seed=3)
    assert (data.labelled, data.unlabelled, [case.id for case in data.held_out]) == (2, 2, ["phantom_t0000"])
    assert data.synthetic
    assert data.apart


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "nowhere", "does not exist"),
        (lambda folder: folder, "holds no scan: the folder is empty"),
        (lambda folder: msd(folder, 6, labels=0), "has 0 labelled scans to train and validate with"),
        (lambda folder: msd(folder, 4), "has 4 labelled scans to train and validate with, fewer than 5 folds"),
        (lambda folder: msd(folder, 6), "has 4 scans to train with, 4 of them with a label; 4 with a label and more"),
        (lambda folder: msd(folder, 12, labels=6), "has 10 scans to train with, 4 of them with a label; 5 with a"),
    ],
)
def test_a_folder_that_will_not_do_is_one_line_and_nothing_is_written(tmp_path, capsys, make, says):
    labelled = "5" if "10 scans" in says else "4"
    (tmp_path / "data").mkdir()
    folder = make(tmp_path / "data")
    assert main(["demo", "--data", str(folder), "--labelled", labelled, "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_scan_that_cannot_be_read_is_named(tmp_path, capsys):
    folder = msd(tmp_path / "data", 7)
    (folder / "imagesTr" / "scan_001.nii.gz").write_bytes(b"no scan")
    assert main(["demo", "--data", str(folder), "--labelled", "2", "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "scan_001.nii.gz" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
