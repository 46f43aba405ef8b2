"""The h5 folders of the semi-supervised papers: `train.list`, `val.list`, `test.list` (or `.txt`) with case names.

The file of a name is searched in a few known locations. The location tells the benchmark, and thereby the spacing and
the class, which the files themselves do not store. A name without a file is still a case, which `check` reports.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fheat.data.case import Case, Dataset, Spacing
from fheat.data.layouts.common import inside
from fheat.system.errors import BadInput
from fheat.system.files import read_capped

NAME: Final = "h5 lists"

_SPLITS: Final = {"train": "train", "val": "validation", "test": "test"}
"""Name of each list, and the split of its cases."""
_LIST_LIMIT: Final = 16 * 2**20
"""Largest number of bytes of a list."""


@dataclass(frozen=True)
class _Location:
    """Where a benchmark stores the file of a case, and what is known about that benchmark."""

    pattern: str
    benchmark: str
    spacing: Spacing
    structure: str | None

    def file(self, path: Path, name: str) -> Path:
        """Return the path of a case at this location."""
        return path / self.pattern.format(name)


_LA: Final = ("LA", (0.625, 0.625, 0.625), "left atrium")
_PANCREAS: Final = ("Pancreas-CT", (1.0, 1.0, 1.0), "pancreas")
_BRATS: Final = ("BraTS 2019", (1.0, 1.0, 1.0), "whole tumour")
LOCATIONS: Final = (
    _Location("2018LA_Seg_Training Set/{}/mri_norm2.h5", *_LA),
    _Location("{}/mri_norm2.h5", *_LA),
    _Location("Pancreas_h5/{}_norm.h5", *_PANCREAS),
    _Location("{}_norm.h5", *_PANCREAS),
    _Location("data/{}.h5", *_BRATS),
    _Location("{}.h5", "h5", (1.0, 1.0, 1.0), None),
)


def recognises(path: Path) -> bool:
    """Return whether there are lists and h5 files."""
    return bool(_lists(path)) and any(path.rglob("*.h5"))


def read(path: Path) -> Dataset:
    """Return the cases in the order of the lists, on which the labelled subsets of the papers depend."""
    names = _names(path)
    first = next((where for _, name in names if (where := _locate(path, name))), LOCATIONS[-1])
    located = [(name, split, _locate(path, name) or first) for split, name in names]
    labels = {} if first.structure is None else {"background": (0,), first.structure: (1,)}
    return Dataset(
        name=first.benchmark,
        root=path,
        layout=NAME,
        cases=tuple(
            Case(name.replace("/", "_"), (where.file(path, name),), where.file(path, name), False, split, where.spacing)
            for name, split, where in located
        ),
        labels=labels,
    )


def _lists(path: Path) -> dict[str, Path]:
    """Return the file of each list that exists, by split."""
    candidates = {split: (path / f"{stem}.list", path / f"{stem}.txt") for stem, split in _SPLITS.items()}
    return {split: file for split, files in candidates.items() for file in files if os.path.lexists(file)}


def _names(path: Path) -> list[tuple[str, str]]:
    """Return (split, name) for each line that is not empty, without a final `.h5` and anything after a comma."""
    names = []
    for split, file in _lists(path).items():
        try:
            lines = read_capped(file, _LIST_LIMIT).decode().splitlines()
        except UnicodeDecodeError as error:
            raise BadInput(file, f"is not text ({error})", "write one case name per line") from None
        for number, line in enumerate(lines, start=1):
            name = line.split(",")[0].strip().removesuffix(".h5")
            if name:
                inside(path, name, source=file, field=f"line {number}")
                names.append((split, name))
    return names


def _locate(path: Path, name: str) -> _Location | None:
    return next((where for where in LOCATIONS if where.file(path, name).exists()), None)
