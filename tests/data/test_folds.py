"""Folds: every labelled scan validates once, and trains otherwise."""

from pathlib import Path

import pytest

from fheat.data.case import Case, Dataset
from fheat.data.folds import Fold, with_fold
from fheat.system.errors import BadInput


def dataset(train=7, validation=2, unlabelled=2, test=1):
    cases = [Case(f"t{i}", (Path(f"t{i}"),), label=Path("label")) for i in range(train)]
    cases += [Case(f"u{i}", (Path(f"u{i}"),), unlabelled=True) for i in range(unlabelled)]
    cases += [Case(f"v{i}", (Path(f"v{i}"),), label=Path("label"), split="validation") for i in range(validation)]
    cases += [Case(f"s{i}", (Path(f"s{i}"),), label=Path("label"), split="test") for i in range(test)]
    return Dataset("scans", Path("scans"), "plain", tuple(cases))


def ids(cases):
    return [case.id for case in cases]


def test_scans_go_to_the_folds_in_turn():
    found = [ids(with_fold(dataset(), Fold(number, 4)).split("validation")) for number in (1, 2, 3, 4)]
    assert found == [["t0", "t4", "v1"], ["t1", "t5"], ["t2", "t6"], ["t3", "v0"]]


@pytest.mark.parametrize("folds", [2, 5, 9])
def test_every_labelled_scan_validates_once_and_trains_otherwise(folds):
    whole = dataset()
    labelled = ids(case for case in whole.cases if case.label is not None and case.split != "test")
    validated = []
    for number in range(1, folds + 1):
        one = with_fold(whole, Fold(number, folds))
        validation, training = ids(one.split("validation")), ids(one.split("train"))
        assert sorted(validation + training) == sorted([*labelled, "u0", "u1"])
        assert ids(one.cases) == ids(whole.cases)
        assert ids(one.split("test")) == ["s0"]
        assert {"u0", "u1"} <= set(training)
        validated += validation
        assert len(validation) in (len(labelled) // folds, -(-len(labelled) // folds))
    assert sorted(validated) == sorted(labelled)


def test_more_folds_than_scans_are_refused_in_one_line():
    with pytest.raises(BadInput, match="has 9 labelled scans to train and validate with, fewer than 10 folds"):
        with_fold(dataset(), Fold(1, 10))


@pytest.mark.parametrize("text", ["", "5", "0/5", "6/5", "1/1", "2/5/7", "-1/5", "a/b", "2 / 5", "1.5/5", "1/99999"])
def test_what_is_no_fold(text):
    with pytest.raises(ValueError, match=r"is no fold \(give its number and how many there are"):
        Fold.read(text)


def test_a_fold_is_written_as_it_is_read():
    assert str(Fold.read("2/5")) == "2/5"
    assert Fold.read("02/10") == Fold(2, 10)
