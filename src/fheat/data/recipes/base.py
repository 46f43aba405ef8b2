"""The parts of a recipe: its options, the cases of a download, a prepared case; and checks that recipes share."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fheat.data.case import Spacing
from fheat.data.crop import Box, bounding_box
from fheat.io import read_volume
from fheat.io.volume import Volume, grid_difference
from fheat.system.errors import BadInput


@dataclass(frozen=True)
class RecipeOptions:
    """Options that a user may set. A recipe names those that it has; the others must keep their defaults."""

    benchmark_crop: bool = False
    """Whether to crop around the label, test cases included, as the published benchmark does."""
    spacing: Spacing | None = None
    """Spacing in millimetres to which scans are resampled; with None they keep their own."""
    flip_labels: str = ""
    """Axes, of `x`, `y`, `z`, along which the stored labels are flipped."""

    def chosen(self) -> tuple[str, ...]:
        """Return the names of the options that differ from their defaults."""
        default = RecipeOptions()
        return tuple(name for name in vars(default) if getattr(self, name) != getattr(default, name))


@dataclass(frozen=True)
class Source:
    """One case of a download: its files, or the folder of its DICOM series."""

    id: str
    image: Path
    label: Path | None
    unlabelled: bool = False
    """Whether the download declares that this case has no label."""


@dataclass(frozen=True)
class Download:
    """The content of a downloaded folder: its kind, and its cases in the order of their ids."""

    kind: str
    cases: list[Source]
    cropped: bool = False
    """Whether its authors have cropped the scans around the labels."""


@dataclass(frozen=True)
class PreparedCase:
    """One case as it will be written: one volume per channel and the label, all on the same grid."""

    images: tuple[Volume, ...]
    label: Volume | None


@dataclass(frozen=True)
class Recipe:
    """A dataset of the paper: `find` lists the cases of a download, `prepare` computes one prepared case."""

    name: str
    title: str
    channels: tuple[str, ...]
    labels: Mapping[str, int | list[int]]
    """Label values of each class in nnU-Net's form, background first; several values form a region."""
    find: Callable[[Path, RecipeOptions], Download]
    prepare: Callable[[Source, RecipeOptions], PreparedCase]
    steps: tuple[str, ...]
    """Steps of the preparation in their order, quirks included, as sentences for `dataset.json`."""
    options: frozenset[str] = frozenset()
    """Names of the `RecipeOptions` that this recipe has."""


def files_named(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder that match a pattern, without hidden files such as the `._` copies of macOS."""
    return (file for file in root.rglob(pattern) if file.is_file() and not file.name.startswith("."))


def cases_by_id(root: Path, cases: Iterable[Source], expected: str) -> list[Source]:
    """Return the cases sorted by id, or raise `BadInput` if there are none or two have the same id."""
    by_id: dict[str, Source] = {}
    for case in cases:
        if case.id in by_id:
            raise BadInput(case.image, f"is case {case.id}, which {by_id[case.id].image} is too", "keep one of them")
        by_id[case.id] = case
    if not by_id:
        raise BadInput(root, f"holds no {expected}", "give the folder as downloaded and unpacked")
    return [by_id[name] for name in sorted(by_id)]


def read_source_label(case: Source, scan: Volume, values: Iterable[int]) -> Volume:
    """Return the label of a case as uint8, or raise `BadInput` unless it has the scan's grid and only 0 and `values`.

    The case must not be declared unlabelled.
    """
    path = label_path(case)
    label = as_label(path, read_volume(path), values)
    check_same_grid(path, label, scan)
    return label


def label_path(case: Source) -> Path:
    """Return the label file of a case that should have one, or raise `BadInput`."""
    if case.label is None:
        raise BadInput(case.image, f"case {case.id} has no label file", "download it again")
    return case.label


def label_box(case: Source, label: Volume, *, past_last: int) -> Box:
    """Return the box around a label, see `bounding_box`, or raise `BadInput` if the label is empty."""
    box = bounding_box(label.data, past_last=past_last)
    if box is None:
        raise BadInput(label_path(case), "is empty: there is no box to crop around", "leave out --benchmark-crop")
    return box


def as_label(path: Path, volume: Volume, values: Iterable[int]) -> Volume:
    """Return a label as uint8, or raise `BadInput` if it has other values than 0 and `values`."""
    allowed = {0, *values}
    unexpected = [value for value in np.unique(volume.data).tolist() if value not in allowed]
    if volume.data.ndim != 3 or unexpected:
        shown = ", ".join(f"{value:g}" for value in unexpected[:5]) or f"shape {volume.data.shape}"
        raise BadInput(path, f"label holds {shown}: expected {sorted(allowed)}", "check that it is the right file")
    return Volume(volume.data.astype(np.uint8), volume.affine)


def check_same_grid(path: Path, volume: Volume, image: Volume) -> None:
    """Raise `BadInput` unless a label has the grid of its image."""
    if difference := grid_difference(image, volume):
        reason = f"field {difference.field} is {difference.second}, that of its image {difference.first}"
        raise BadInput(path, reason, "check the pair")


def check_not_constant(path: Path, volume: Volume) -> None:
    """Raise `BadInput` if all voxels have the same value, because they cannot be normalised."""
    if volume.data.min() == volume.data.max():
        raise BadInput(path, f"holds the value {volume.data.flat[0]} everywhere", "copy it again from its source")
