"""`fheat predict` as a user meets it: masks in place, what was refused, nothing lost."""

import json

import numpy as np
import pytest
import torch

from fheat import Card, create_model, save
from fheat.cli.main import main
from fheat.data.phantom import phantom
from fheat.io import Volume, read_nifti, write_nifti
from fheat.io.dicom import read_dicom
from fheat.io.dicom_seg import read_dicom_seg
from fheat.models.card import Intensity, Window
from tests.io.dicom_series import save as save_series
from tests.io.dicom_series import slices

SIZE = (32, 32, 32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    card = Card(
        classes=("background", "chamber"),
        orientation="RAS",
        intensity=Intensity(kind="zscore"),
        window=Window(size=SIZE, stride=(16, 16, 16)),
    )
    return str(save(create_model("fheat_seg", patch_size=SIZE), tmp_path_factory.mktemp("model") / "m", card))


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "scans"
    for seed in range(2):
        made = phantom(seed, (40, 32, 24))
        write_nifti(made.image, folder / f"case{seed}_0000.nii.gz")
    return folder


def test_a_file(model, scans, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["predict", model, str(scans / "case0_0000.nii.gz"), str(out)]) == 0
    printed = capsys.readouterr()
    assert "\ncase0  " in printed.out
    assert "memory at most" in printed.err
    assert sorted(path.name for path in out.iterdir()) == ["case0.nii.gz", "case0.png", "run.json"]
    scan, mask = read_nifti(scans / "case0_0000.nii.gz"), read_nifti(out / "case0.nii.gz")
    assert np.array_equal(mask.affine, scan.affine)
    assert mask.data.shape == scan.data.shape
    assert mask.data.dtype == np.uint8
    assert (out / "case0.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((out / "run.json").read_text())
    (case,) = record["cases"]
    assert case["shape"] == list(scan.data.shape)
    assert case["millilitres"]["chamber"] == pytest.approx(mask.data.sum() * np.prod(scan.spacing) / 1000, abs=1e-3)
    assert record["refused"] == {}
    assert record["settings"]["stride"] == [16, 16, 16]
    assert len(record["weights_sha256"]) == 64


def test_a_folder_with_a_damaged_scan(model, scans, tmp_path, capsys):
    (scans / "bad_0000.nii.gz").write_bytes((scans / "case0_0000.nii.gz").read_bytes()[:-40])
    out = tmp_path / "out"
    assert main(["predict", model, str(scans), str(out), "--json", "--no-preview"]) == 3
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert [case["id"] for case in record["cases"]] == ["case0", "case1"]
    assert list(record["refused"]) == ["bad"]
    assert "gzip stream is damaged" in record["refused"]["bad"]
    assert "1 of 3 scans refused" in printed.err.strip().split("\n")[-1]
    assert sorted(path.name for path in out.iterdir()) == ["case0.nii.gz", "case1.nii.gz", "run.json"]
    assert json.loads((out / "run.json").read_text()) == record


def test_dicom_in_and_seg_out(model, tmp_path):
    affine = np.diag([-1.5, -1.5, 2.0, 1.0])
    data = phantom(3, (40, 32, 24), geometry="canonical").image.data
    save_series(slices(data, affine), tmp_path / "series")
    for form in ("seg", "nifti"):
        assert main(["predict", model, str(tmp_path / "series"), str(tmp_path / form), "--format", form]) == 0
    series = read_dicom(tmp_path / "series")
    found = read_dicom_seg(tmp_path / "seg" / "series.dcm", series)
    mask = read_nifti(tmp_path / "nifti" / "series.nii.gz")
    assert np.array_equal(found.data, mask.data)
    assert 0 < mask.data.sum() < mask.data.size
    assert np.abs(mask.affine - series.volume.affine).max() < 1e-6


def test_options_reach_the_window(model, scans, tmp_path, capsys):
    scan = str(scans / "case0_0000.nii.gz")
    options = ["--stride", "32", "32", "32", "--weights", "gaussian", "--batch", "2", "--largest-component", "--flips"]
    assert main(["predict", model, scan, str(tmp_path / "out"), "--json", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["settings"] == {
        "window": [32, 32, 32],
        "stride": [32, 32, 32],
        "weights": "gaussian",
        "flips": True,
        "largest_component": True,
    }


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"model": "nowhere"}, 3, "no such model folder"),
        ({"input": "nowhere"}, 3, "does not exist"),
        ({"more": ["--format", "seg"]}, 2, "DICOM SEG refers to a DICOM series"),
        ({"more": ["--preset", "la"]}, 2, "differs from the network's patch (32, 32, 32)"),
        ({"more": ["--stride", "40", "8", "8"]}, 2, "leaves gaps"),
        ({"more": ["--batch", "0"]}, 2, "batch=0"),
        ({"more": ["--device", "abacus"]}, 2, "abacus"),
    ],
)
def test_what_cannot_be_done_is_one_line(model, scans, tmp_path, capsys, change, code, says):
    words = [change.get("model", model), change.get("input", str(scans)), str(tmp_path / "out")]
    assert main(["predict", *words, *change.get("more", [])]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error
    assert not (tmp_path / "out").exists()


def test_masks_are_kept_unless_overwritten(model, scans, tmp_path, capsys):
    words = ["predict", model, str(scans / "case0_0000.nii.gz"), str(tmp_path / "out")]
    assert main(words) == 0
    before = (tmp_path / "out" / "case0.nii.gz").stat().st_mtime_ns
    assert main(words) == 0
    assert "1 masks exist already and are kept; --overwrite replaces them" in capsys.readouterr().err
    assert (tmp_path / "out" / "case0.nii.gz").stat().st_mtime_ns == before
    records = [json.loads((tmp_path / "out" / name).read_text()) for name in ("run.json", "run-2.json")]
    assert [len(record["cases"]) for record in records] == [1, 0]
    assert [record["kept"] for record in records] == [[], ["case0"]]
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "out" / "case0.nii.gz").stat().st_mtime_ns > before


def test_the_wrong_number_of_channels_is_refused(model, tmp_path, capsys):
    write_nifti(Volume(np.zeros((9, 9, 9, 2), np.float32), np.eye(4)), tmp_path / "two.nii.gz")
    assert main(["predict", model, str(tmp_path / "two.nii.gz"), str(tmp_path / "out")]) == 3
    assert "has 2 channels and the network takes 1" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["cases"] == []


def test_evaluate_takes_what_predict_wrote(model, scans, tmp_path, capsys):
    assert main(["predict", model, str(scans), str(tmp_path / "out"), "--no-preview"]) == 0
    for seed in range(2):
        write_nifti(phantom(seed, (40, 32, 24)).label, tmp_path / "labels" / f"case{seed}.nii.gz")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "out"), str(tmp_path / "labels"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["case"] for row in rows] == ["case0", "case1"]
    assert all(0 <= row["dice"] < 1 for row in rows)
