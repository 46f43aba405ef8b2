"""Medical Segmentation Decathlon: `dataset.json` with lists `training` and `test`; images are 4-D with channels."""

from pathlib import Path
from typing import Final

from pydantic import Field

from fheat.data.case import Dataset
from fheat.data.layouts.common import (
    Description,
    Entry,
    cases_of,
    count_mismatch,
    describe,
    load_json,
    peek_json,
    with_distinct_names,
)

NAME: Final = "MSD"


class _DatasetJson(Description):
    training: tuple[Entry, ...]
    test: tuple[Entry | str, ...] = ()
    labels: dict[int, str] = Field(default_factory=dict)
    modality: dict[int, str] = Field(default_factory=dict)
    name: str | None = None
    numTraining: int | None = None  # noqa: N815 - the format's spelling
    numTest: int | None = None  # noqa: N815


def recognises(path: Path) -> bool:
    """Return whether `dataset.json` lists training cases."""
    return "training" in peek_json(path / "dataset.json")


def read(path: Path) -> Dataset:
    """Return training and test cases in the order of the file; the format declares test cases unlabelled."""
    source = path / "dataset.json"
    stated = describe(_DatasetJson, source, load_json(source))
    training = cases_of(stated.training, split="train", source=source, field="training", absolute=False)
    test = cases_of(stated.test, split="test", source=source, field="test", unlabelled=True, absolute=False)
    return Dataset(
        name=stated.name or path.resolve().name,
        root=path,
        layout=NAME,
        cases=with_distinct_names(path, training + test),
        labels={name: (value,) for value, name in stated.labels.items()},
        channels=tuple(stated.modality[index] for index in sorted(stated.modality)),
        problems=(
            *count_mismatch(source, "numTraining", stated.numTraining, training),
            *count_mismatch(source, "numTest", stated.numTest, test),
        ),
    )
