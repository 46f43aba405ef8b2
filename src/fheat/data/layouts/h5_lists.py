"""The h5 folders of the semi-supervised papers: `train.list`, `val.list`, `test.list` (or `.txt`) of case names.

A name is looked for under a few fixed places; each says which benchmark it is, and with it the spacing and the class,
which the files themselves do not hold. A name without a file is still a case: `check` reports it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fheat.data.case import Case, Dataset, Spacing
from fheat.data.layouts.common import inside
from fheat.system.errors import BadInput

NAME: Final = "h5 lists"

_SPLITS: Final = {"train": "train", "val": "validation", "test": "test"}
_LIST_LIMIT: Final = 16 * 2**20


@dataclass(frozen=True)
class _Place:
    """Where a benchmark keeps the file of a case."""

    pattern: str
    benchmark: str
    spacing: Spacing
    structure: str | None

    def file(self, root: Path, name: str) -> Path:
        """Return the path a case would have here."""
        return root / self.pattern.format(name)


_LA: Final = ("LA", (0.625, 0.625, 0.625), "left atrium")
_PANCREAS: Final = ("Pancreas-CT", (1.0, 1.0, 1.0), "pancreas")
_BRATS: Final = ("BraTS 2019", (1.0, 1.0, 1.0), "whole tumour")
PLACES: Final = (
    _Place("2018LA_Seg_Training Set/{}/mri_norm2.h5", *_LA),
    _Place("{}/mri_norm2.h5", *_LA),
    _Place("Pancreas_h5/{}_norm.h5", *_PANCREAS),
    _Place("{}_norm.h5", *_PANCREAS),
    _Place("data/{}.h5", *_BRATS),
    _Place("{}.h5", "h5", (1.0, 1.0, 1.0), None),
)


def recognises(place: Path) -> bool:
    """Say whether there are lists and h5 files to be listed."""
    return bool(_lists(place)) and any(place.rglob("*.h5"))


def read(place: Path) -> Dataset:
    """List the cases in the order of the lists, which the papers' labelled subsets depend on."""
    names = _names(place)
    first = next((where for _, name in names if (where := _locate(place, name))), PLACES[-1])
    found = [(name, split, _locate(place, name) or first) for split, name in names]
    labels = {} if first.structure is None else {"background": (0,), first.structure: (1,)}
    return Dataset(
        name=first.benchmark,
        root=place,
        layout=NAME,
        cases=tuple(
            Case(
                name.replace("/", "_"), (where.file(place, name),), where.file(place, name), False, split, where.spacing
            )
            for name, split, where in found
        ),
        labels=labels,
    )


def _lists(place: Path) -> dict[str, Path]:
    """Return the list of each split there is."""
    candidates = {split: (place / f"{stem}.list", place / f"{stem}.txt") for stem, split in _SPLITS.items()}
    return {split: path for split, paths in candidates.items() for path in paths if path.is_file()}


def _names(place: Path) -> list[tuple[str, str]]:
    """Return (split, name) for each line; what follows a comma, a final `.h5` and empty lines are dropped."""
    names = []
    for split, path in _lists(place).items():
        if path.stat().st_size > _LIST_LIMIT:
            raise BadInput(path, f"is larger than {_LIST_LIMIT:,} bytes", "check that it is a list of names")
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise BadInput(path, f"is not text ({error})", "write one case name per line") from None
        for number, line in enumerate(lines, start=1):
            name = line.split(",")[0].strip().removesuffix(".h5")
            if name:
                inside(place, name, source=path, field=f"line {number}")
                names.append((split, name))
    return names


def _locate(root: Path, name: str) -> _Place | None:
    return next((where for where in PLACES if where.file(root, name).exists()), None)
