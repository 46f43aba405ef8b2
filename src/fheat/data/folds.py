"""Folds: the labelled scans of a dataset divided for cross-validation, one part of which validates."""

import re
from dataclasses import dataclass, replace

from fheat.data.case import Case, Dataset
from fheat.system.errors import BadInput


@dataclass(frozen=True)
class Fold:
    """One of so many folds, `number` counted from 1; written as in 2/5."""

    number: int
    folds: int

    @classmethod
    def read(cls, text: str) -> "Fold":
        """Return the fold that a text such as 2/5 means, or raise `ValueError`."""
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
        fold = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not (1 <= fold.number <= fold.folds and fold.folds >= 2):
            raise ValueError(f"{text!r} is no fold (give its number and how many there are, 1/2 at least, such as 2/5)")
        return fold

    def __str__(self) -> str:
        return f"{self.number}/{self.folds}"


def with_fold(dataset: Dataset, fold: Fold) -> Dataset:
    """Return the dataset with the scans of a fold for validation and the others for training; the test scans stay.

    The labelled scans of the splits train and validation, in the order of the dataset, go to the folds in turn: with
    five folds scan i, counted from 0, is in fold 1 + i mod 5. So scans that lie together, because they come from one
    hospital, are spread over all folds, whose sizes differ by at most one. Scans without a label train in every fold.
    """
    labelled = [case for case in dataset.cases if case.split in ("train", "validation") and case.label is not None]
    if len(labelled) < fold.folds:
        reason = f"has {len(labelled)} labelled scans to train and validate with, fewer than {fold.folds} folds"
        raise BadInput(dataset.root, reason, "ask for fewer folds")
    validating = {id(case) for case in labelled[fold.number - 1 :: fold.folds]}

    def placed(case: Case) -> Case:
        if case.split not in ("train", "validation"):
            return case
        return replace(case, split="validation" if id(case) in validating else "train")

    return replace(dataset, cases=tuple(map(placed, dataset.cases)))
