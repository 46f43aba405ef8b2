"""MONAI datalist: one JSON file with lists `training`, `validation`, `testing`, `unlabelled` of images and labels.

Relative paths start at the folder of the file and must stay inside it; absolute paths are accepted. Classes stand in
`labels`, as value and name (`{"1": "atrium"}`) or as name and value or values (`{"whole tumour": [1, 2, 4]}`). Where
`values` is given, `{"0": 0, "255": 1}`, the value 255 of a label file is read as 1, and no other value may occur.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import Field, NonNegativeInt, field_validator

from fheat.data.case import Dataset
from fheat.data.layouts.common import (
    Description,
    Entry,
    cases_of,
    describe,
    load_json,
    peek_json,
    with_distinct_names,
)

NAME: Final = "MONAI datalist"

_LISTS: Final = (
    ("training", "train", False),
    ("unlabelled", "train", True),
    ("unlabeled", "train", True),
    ("validation", "validation", False),
    ("testing", "test", True),
    ("test", "test", True),
)
"""Key of each list, the split of its cases, and whether the key declares a case without a label as unlabelled."""


class _Datalist(Description):
    training: tuple[Entry, ...] = ()
    unlabelled: tuple[Entry | str, ...] = ()
    unlabeled: tuple[Entry | str, ...] = ()
    validation: tuple[Entry, ...] = ()
    testing: tuple[Entry | str, ...] = ()
    test: tuple[Entry | str, ...] = ()
    labels: dict[str, str | int | tuple[int, ...]] = Field(default_factory=dict)
    values: dict[int, NonNegativeInt] = Field(default_factory=dict)
    modality: dict[int, str] = Field(default_factory=dict)
    name: str | None = None

    @field_validator("labels")
    @classmethod
    def _name_values(cls, labels: dict[str, Any]) -> dict[str, Any]:
        for name, value in labels.items():
            if isinstance(value, str) and not name.removeprefix("-").isdecimal():
                raise ValueError(f"{name!r} is no label value: write value and name, or name and value")
        return labels

    def classes(self) -> dict[str, tuple[int, ...]]:
        """Return the label values of each class."""
        return {
            value if isinstance(value, str) else name: (
                (int(name),) if isinstance(value, str) else (value,) if isinstance(value, int) else value
            )
            for name, value in self.labels.items()
        }


def recognises(path: Path) -> bool:
    """Return whether the file, or exactly one file of the folder, is a datalist."""
    return len(_datalists(path)) == 1


def read(path: Path) -> Dataset:
    """Return training, unlabelled, validation and test cases, each in the order of the file."""
    source = _datalists(path)[0]
    stated = describe(_Datalist, source, load_json(source))
    cases = [
        replace(case, values=tuple(stated.values.items()))
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
        labels=stated.classes(),
        channels=tuple(stated.modality[index] for index in sorted(stated.modality)),
    )


def _datalists(path: Path) -> list[Path]:
    candidates = sorted(path.glob("*.json")) if path.is_dir() else [path]
    keys = [key for key, _, _ in _LISTS]
    return [
        file
        for file in candidates
        if file.suffix == ".json" and any(_holds_entries(peek_json(file).get(key)) for key in keys)
    ]


def _holds_entries(value: object) -> bool:
    """Return whether a value is a list of entries, and not a list of ids as in `splits.json`."""
    return isinstance(value, list) and any(isinstance(entry, dict) and "image" in entry for entry in value)
