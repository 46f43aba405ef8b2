"""Runs on a fold: which scans train and validate, and who else keeps to it."""

import shutil

import pytest
import torch

import fheat
import fheat.training.prepare as preparing
from fheat.cli.main import main
from fheat.data.grid import common_grid, outline
from fheat.data.layouts import open_dataset
from fheat.data.preprocessing import Intensity, Preprocessing
from fheat.data.read import read_image
from fheat.studies.validation import segment_validation_scans
from fheat.system.errors import BadInput
from fheat.system.sealed import sealed, unsealed
from fheat.training.run_folder import RunFolder
from fheat.training.scans import open_run_dataset
from fheat.training.trainer import Stopped
from tests.training.helpers import SMALL, SMALL_WORDS, Run, StopAfter

SHORT = SMALL | {"iterations": 2, "warm_up": 1, "batch": 1, "method": "supervised"}


def ids(cases):
    return [case.id for case in cases]


def test_the_scans_of_the_fold_validate_and_the_others_train(scans, tmp_path):
    words = ["train", str(scans), *SMALL_WORDS, "--iterations", "2", "--warm-up", "1", "--fold", "2/5"]
    assert main([*words, "--method", "cse", "--out", str(tmp_path / "run")]) == 0
    card = fheat.load(tmp_path / "run" / "best").card
    assert card.training["data"]["fold"] == "2/5"
    again = Run(RunFolder(tmp_path / "run").settings(), tmp_path / "run", resume=True)
    everything = ids(case for case in open_dataset(scans).cases if case.split in ("train", "validation"))
    validation = [scan.name for scan in again.scans.validation]
    assert validation == everything[1::5]
    rest = [name for name in everything if name not in validation]
    assert again.scans.names[:2] == rest[:2]  # the labelled ones
    assert sorted(again.scans.names) == sorted(rest)


def test_whoever_looks_at_a_run_later_sees_its_fold(scans, config, tmp_path):
    settings = config(fold="3/5", iterations=1, method="supervised")
    run = Run(settings, tmp_path / "run")
    model = fheat.load(run.train())
    expected = [scan.name for scan in run.scans.validation]
    assert ids(open_run_dataset(settings.data).split("validation")) == expected
    shown = segment_validation_scans(model, settings.data, 5)
    assert [scan.case for scan in shown] == expected


def test_a_fold_that_cannot_be_is_one_line(scans, tmp_path, capsys):
    with pytest.raises(BadInput, match="labelled scans to train and validate with, fewer than 50 folds"):
        fheat.train(data=str(scans), fold="1/50", out=tmp_path / "run", device="cpu", **SHORT)
    assert main(["train", str(scans), "--fold", "7/5", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--data.fold: '7/5' is no fold" in error
    assert not (tmp_path / "run").exists()


def divided(scans):
    """The preprocessing that all scans of the folds have together."""
    cases = [case for case in open_dataset(scans).cases if case.split in ("train", "validation")]
    outlines = [outline(read_image(case)) for case in cases]
    assert len({one.spacing for one in outlines}) == len(cases) == 10
    return common_grid(outlines, Preprocessing(intensity=Intensity(kind="zscore")))


@pytest.mark.parametrize("labelled", [["--labelled", "2"], []], ids=["two labels", "all labels"])
def test_the_networks_of_all_folds_have_one_grid_and_are_averaged(scans, tmp_path, capsys, labelled):
    """With two labels of seven, each fold trains and validates on scans with other spacings."""
    words = ["train", str(scans), *SMALL_WORDS[2:], *labelled, "--iterations", "1", "--warm-up", "0"]
    runs = [str(tmp_path / f"run-{number}") for number in (1, 2, 3)]
    for number, run in enumerate(runs, start=1):
        assert main([*words, "--method", "supervised", "--fold", f"{number}/3", "--out", run]) == 0
        assert fheat.load(run).card.preprocessing == divided(scans)
    scan = next(iter(open_dataset(scans).cases)).images[0]
    assert main(["predict", *runs, str(scan), str(tmp_path / "masks"), "--device", "cpu", "--runtime", "torch"]) == 0
    assert "model: miniature, supervised and 2 more" in capsys.readouterr().out
    assert (tmp_path / "masks" / f"{scan.name.removesuffix('_0000.nii.gz')}.nii.gz").exists()


def test_of_scans_that_a_fold_leaves_out_the_geometry_alone_is_looked_at(scans, config, tmp_path):
    shutil.copytree(scans, tmp_path / "scans")
    settings = config(data=str(tmp_path / "scans"), fold="2/3", method="supervised")
    used = Run(settings, tmp_path / "whole").scans
    others = set(ids(open_dataset(scans).cases)) - set(used.names) - {scan.name for scan in used.validation}
    assert len(others) == 5
    for name in others:
        (tmp_path / "scans" / "labelsTr" / f"{name}.nii.gz").write_bytes(b"no label")
    again = Run(settings, tmp_path / "broken").scans
    assert again.preprocessing == used.preprocessing == divided(scans)
    (tmp_path / "scans" / "imagesTr" / f"{min(others)}_0000.nii.gz").write_bytes(b"no scan")
    with pytest.raises(BadInput, match=f"{min(others)}_0000.nii.gz: "):
        Run(settings, tmp_path / "no-scan")


def test_a_grid_that_the_settings_state_needs_no_other_scan(config, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "outlines_left_out", None)
    settings = config(fold="2/3", method="supervised", spacing=(4.0, 4.0, 4.0), **{"preprocessing.orientation": "LPS"})
    found = Run(settings, tmp_path / "run").scans.preprocessing
    assert (found.orientation, found.spacing) == ("LPS", (4.0, 4.0, 4.0))


@pytest.mark.parametrize("earlier", [False, True], ids=["this version", "an earlier version"])
def test_a_run_goes_on_with_the_grid_that_it_was_begun_with(scans, config, tmp_path, monkeypatch, earlier):
    """Earlier versions looked at the scans of the run alone, and kept no grid."""
    settings = config(fold="2/3", method="supervised")
    with monkeypatch.context() as version:
        if earlier:
            version.setattr(preparing, "outlines_left_out", lambda *arguments: [])
        whole = Run(settings, tmp_path / "whole")
        whole.train()
        with pytest.raises(Stopped):
            Run(settings, tmp_path / "parts", observers=[StopAfter(3)]).train()
    assert (whole.scans.preprocessing == divided(scans)) is not earlier
    if earlier:
        for path in (tmp_path / "parts" / "checkpoints").glob("*/manifest.json"):
            manifest = unsealed(path.read_bytes())
            del manifest["facts"]["grid"]
            path.write_bytes(sealed(manifest))
    monkeypatch.setattr(preparing, "outlines_left_out", None)  # nobody asks for them again
    parts = Run(settings, tmp_path / "parts", resume=True)
    assert parts.done == 3
    parts.train()
    assert parts.scans.preprocessing == whole.scans.preprocessing
    one, other = (fheat.load(tmp_path / name / "final").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
