"""Runs on a fold: which scans train and validate, and who else keeps to it."""

import pytest

import fheat
from fheat.cli.main import main
from fheat.data.layouts import open_dataset
from fheat.studies.validation import segment_validation_scans
from fheat.system.errors import BadInput
from fheat.training.run_folder import RunFolder
from fheat.training.scans import open_run_dataset
from tests.training.helpers import SMALL, SMALL_WORDS, Run

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
