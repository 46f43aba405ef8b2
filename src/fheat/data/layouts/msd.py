"""Medical Segmentation Decathlon: `dataset.json` with lists `training` and `test`; 4-D images hold the channels."""

from pathlib import Path
from typing import Final

from pydantic import Field

from fheat.data.case import Dataset
from fheat.data.layouts.common import Description, count_mismatch, describe, load_json, peek_json
from fheat.data.layouts.datalist import Entry, cases_of, with_distinct_names

NAME: Final = "MSD"


class _DatasetJson(Description):
    training: tuple[Entry, ...]
    test: tuple[Entry | str, ...] = ()
    labels: dict[int, str] = Field(default_factory=dict)
    modality: dict[int, str] = Field(default_factory=dict)
    name: str | None = None
    numTraining: int | None = None  # noqa: N815 - the format's spelling
    numTest: int | None = None  # noqa: N815


def recognises(place: Path) -> bool:
    """Say whether `dataset.json` lists its training cases."""
    return "training" in peek_json(place / "dataset.json")


def read(place: Path) -> Dataset:
    """List training and test cases in the order of the file; test cases are declared unlabelled by the format."""
    source = place / "dataset.json"
    stated = describe(_DatasetJson, source, load_json(source))
    training = cases_of(stated.training, split="train", source=source, field="training", absolute=False)
    test = cases_of(stated.test, split="test", source=source, field="test", unlabelled=True, absolute=False)
    return Dataset(
        name=stated.name or place.resolve().name,
        root=place,
        layout=NAME,
        cases=with_distinct_names(place, training + test),
        labels={name: (value,) for value, name in stated.labels.items()},
        channels=tuple(stated.modality[index] for index in sorted(stated.modality)),
        problems=(
            *count_mismatch(source, "numTraining", stated.numTraining, training),
            *count_mismatch(source, "numTest", stated.numTest, test),
        ),
    )
