"""MONAI datalist: one JSON file with lists `training`, `validation`, `testing`, `unlabelled` of images and labels.

Relative paths start at the file's folder and stay there; absolute ones were written on purpose and are taken.
"""

from pathlib import Path
from typing import Final

from pydantic import Field

from fheat.data.case import Dataset
from fheat.data.layouts.common import Description, describe, load_json, peek_json
from fheat.data.layouts.datalist import Entry, cases_of, with_distinct_names

NAME: Final = "MONAI datalist"

# Key of the list, the split its cases belong to, whether a missing label is declared by the key.
_LISTS: Final = (
    ("training", "train", False),
    ("unlabelled", "train", True),
    ("unlabeled", "train", True),
    ("validation", "validation", False),
    ("testing", "test", True),
    ("test", "test", True),
)


class _Datalist(Description):
    training: tuple[Entry, ...] = ()
    unlabelled: tuple[Entry | str, ...] = ()
    unlabeled: tuple[Entry | str, ...] = ()
    validation: tuple[Entry, ...] = ()
    testing: tuple[Entry | str, ...] = ()
    test: tuple[Entry | str, ...] = ()
    labels: dict[int, str] = Field(default_factory=dict)
    modality: dict[int, str] = Field(default_factory=dict)
    name: str | None = None


def recognises(place: Path) -> bool:
    """Say whether the file, or exactly one file of the folder, is a datalist."""
    return len(_datalists(place)) == 1


def read(place: Path) -> Dataset:
    """List the cases in the order of the file: training, unlabelled, validation, test."""
    source = _datalists(place)[0]
    stated = describe(_Datalist, source, load_json(source))
    cases = [
        case
        for key, split, unlabelled in _LISTS
        for case in cases_of(
            getattr(stated, key), split=split, source=source, field=key, unlabelled=unlabelled, absolute=True
        )
    ]
    return Dataset(
        name=stated.name or source.stem,
        root=source.parent,
        layout=NAME,
        cases=with_distinct_names(source.parent, cases),
        labels={name: (value,) for value, name in stated.labels.items()},
        channels=tuple(stated.modality[index] for index in sorted(stated.modality)),
    )


def _datalists(place: Path) -> list[Path]:
    candidates = sorted(place.glob("*.json")) if place.is_dir() else [place]
    keys = [key for key, _, _ in _LISTS]
    return [
        path
        for path in candidates
        if path.suffix == ".json" and any(_holds_entries(peek_json(path).get(key)) for key in keys)
    ]


def _holds_entries(value: object) -> bool:
    """Tell a list of entries from a list of ids, which `splits.json` has under the same keys."""
    return isinstance(value, list) and any(isinstance(entry, dict) and "image" in entry for entry in value)
