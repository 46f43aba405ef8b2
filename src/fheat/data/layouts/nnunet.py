"""nnU-Net raw, version 2: `dataset.json`, `imagesTr/<id>_0000.nii.gz`, `labelsTr/<id>.nii.gz`, `imagesTs`.

Additions to nnU-Net's format: `imagesUn/`, or the list `unlabelled` in `dataset.json`, declares scans without a label,
and the list `validation` in `splits.json` selects validation cases. `splits_final.json` (folds) is not read.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from fheat.data.case import Case, Dataset, Problem
from fheat.data.layouts.common import (
    ENDINGS,
    Description,
    by_channel,
    count_mismatch,
    describe,
    image_files,
    labels_without_image,
    load_json,
    peek_json,
)
from fheat.io.nifti import write_nifti
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.files import check_folder, write_file

NAME: Final = "nnU-Net raw"


class _DatasetJson(Description):
    channel_names: dict[int, str]
    labels: dict[str, int | tuple[int, ...]]
    file_ending: str
    name: str | None = None
    numTraining: int | None = None  # noqa: N815 - the format's spelling
    unlabelled: frozenset[str] = frozenset()


class _Splits(Description):
    order: tuple[str, ...] = ()
    validation: frozenset[str] = Field(default=frozenset())


def recognises(path: Path) -> bool:
    """Return whether `dataset.json` names channels as in version 2."""
    return "channel_names" in peek_json(path / "dataset.json")


def read(path: Path) -> Dataset:
    """Return training and validation cases in the order of `splits.json` or by id, then unlabelled and test cases."""
    source, splits = path / "dataset.json", path / "splits.json"
    stated = describe(_DatasetJson, source, load_json(source))
    if stated.file_ending not in ENDINGS:
        raise BadInput(source, f"field file_ending is {stated.file_ending[:40]!r}", f"use one of {', '.join(ENDINGS)}")
    chosen = describe(_Splits, splits, load_json(splits)) if os.path.lexists(splits) else _Splits()
    held_out, rank = chosen.validation, {name: index for index, name in enumerate(chosen.order)}
    endings = (stated.file_ending,)
    images, labels = by_channel(image_files(path / "imagesTr", endings)), image_files(path / "labelsTr", endings)
    training = tuple(
        Case(
            id=name,
            images=files,
            label=None if name in stated.unlabelled else labels.get(name),
            unlabelled=name in stated.unlabelled,
            split="validation" if name in held_out else "train",
        )
        for name, files in sorted(images.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0]))
    )
    more = by_channel(image_files(path / "imagesUn", endings))
    unlabelled = tuple(Case(name, files, unlabelled=True) for name, files in more.items())
    test, orphans = _test(path, endings)
    return Dataset(
        name=stated.name or path.resolve().name,
        root=path,
        layout=NAME,
        cases=training + unlabelled + test,
        labels={name: value if isinstance(value, tuple) else (value,) for name, value in stated.labels.items()},
        channels=tuple(stated.channel_names[index] for index in sorted(stated.channel_names)),
        problems=(
            *count_mismatch(source, "numTraining", stated.numTraining, training),
            *labels_without_image(labels, images | more),
            *orphans,
            *_unknown(splits, "validation", held_out - images.keys()),
            *_unknown(source, "unlabelled", stated.unlabelled - images.keys() - more.keys()),
        ),
    )


def _test(path: Path, endings: tuple[str, ...]) -> tuple[tuple[Case, ...], tuple[Problem, ...]]:
    """Return the test cases and their problems; without a folder of labels they count as declared unlabelled."""
    images, labels = by_channel(image_files(path / "imagesTs", endings)), image_files(path / "labelsTs", endings)
    cases = tuple(
        Case(name, files, label=labels.get(name), unlabelled=not labels, split="test") for name, files in images.items()
    )
    return cases, labels_without_image(labels, images)


def _unknown(source: Path, field: str, names: frozenset[str]) -> tuple[Problem, ...]:
    return tuple(
        Problem(name, source, field, f"names {name!r}, which has no image", "add the image or remove the name")
        for name in sorted(names)
    )


ENDING: Final = ".nii.gz"
"""Ending of the files that `RawWriter` writes."""


class RawWriter:
    """Writes a dataset in this layout to a folder that is new or empty.

    Training cases go to `imagesTr` and `labelsTr`, test cases to `imagesTs` and `labelsTs`. `dataset.json` is written
    last, so a folder without it is incomplete.
    """

    def __init__(self, target: Path) -> None:
        self.target = target

    def check_empty(self) -> None:
        """Raise `BadInput` if the folder is not empty, or if none can be there. It is created with the first file."""
        check_folder(self.target)
        if self.target.exists() and (not self.target.is_dir() or any(self.target.iterdir())):
            raise BadInput(self.target, "exists and is not an empty folder", "choose another or empty it")

    def write_case(self, case: str, images: Sequence[Volume], label: Volume | None, *, test: bool) -> None:
        """Write one file per channel and the label, if any; on an error all of them are removed.

        The label is written first, so that an interrupted run leaves no image without its label.
        """
        part = "Ts" if test else "Tr"
        files = {} if label is None else {self.target / f"labels{part}" / f"{case}{ENDING}": label}
        for channel, image in enumerate(images):
            files[self.target / f"images{part}" / f"{case}_{channel:04d}{ENDING}"] = image
        try:
            for path, volume in files.items():
                write_nifti(volume, path)
        except BaseException:
            for path in files:
                path.unlink(missing_ok=True)
            raise

    def finish(self, dataset: Mapping[str, Any], splits: Mapping[str, Any]) -> None:
        """Write `splits.json`, then `dataset.json`."""
        for name, content in (("splits.json", splits), ("dataset.json", dataset)):
            write_file(self.target / name, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def dataset_json(
    *, name: str, title: str, channels: Sequence[str], labels: Mapping[str, int | list[int]], training: int
) -> dict[str, Any]:
    """Return the content of `dataset.json`; with regions it has the order in which they are painted."""
    described: dict[str, Any] = {
        "name": name,
        "description": title,
        "channel_names": {str(index): channel for index, channel in enumerate(channels)},
        "labels": dict(labels),
    }
    if any(isinstance(value, list) for value in labels.values()):
        described["regions_class_order"] = list(range(1, len(labels)))
    return described | {"numTraining": training, "file_ending": ENDING}
