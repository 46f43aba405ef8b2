"""What a recipe is: where its cases lie, what is done to one, what is true of all. One file per dataset."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fheat.data.case import Spacing
from fheat.data.crop import Box, bounding_box
from fheat.io.nifti import read_nifti
from fheat.io.volume import Volume, grid_difference
from fheat.system.errors import BadInput


@dataclass(frozen=True)
class Options:
    """What the user may choose. A recipe names those it knows; the others must stay at their defaults."""

    benchmark_crop: bool = False
    """Crop around the label as the published benchmark does, at test time too."""
    spacing: Spacing | None = None
    """Millimetres to resample to; as stored if None."""
    flip_labels: str = ""
    """Axes, of `x`, `y`, `z`, along which the stored labels are turned round."""

    def chosen(self) -> tuple[str, ...]:
        """Return the names of the options that differ from their defaults."""
        default = Options()
        return tuple(name for name in vars(default) if getattr(self, name) != getattr(default, name))


@dataclass(frozen=True)
class Source:
    """One case as downloaded: files or, for a DICOM series, its folder."""

    id: str
    image: Path
    label: Path | None
    unlabelled: bool = False
    """The download declares that this case has no label."""


@dataclass(frozen=True)
class Found:
    """What a folder turned out to hold: the kind of download and its cases, in the order of their ids."""

    kind: str
    cases: list[Source]
    cropped: bool = False
    """Its authors have cropped the scans around the labels."""


@dataclass(frozen=True)
class Prepared:
    """One case as it will be written: a volume per channel, all on one grid, and the label on the same."""

    images: tuple[Volume, ...]
    label: Volume | None


@dataclass(frozen=True)
class Recipe:
    """A dataset of the paper. `find` lists the cases of a download, `prepare` does all that is done to one of them."""

    name: str
    title: str
    channels: tuple[str, ...]
    labels: Mapping[str, int | list[int]]
    """nnU-Net's `labels`: background first; several values make a region."""
    find: Callable[[Path, Options], Found]
    prepare: Callable[[Source, Options], Prepared]
    steps: tuple[str, ...]
    """What is done to a case, in order and with the quirks that are kept, in words for `dataset.json`."""
    options: frozenset[str] = frozenset()
    """Names of the `Options` it knows."""


def files_named(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder that match; hidden ones, such as the `._` copies of macOS, are passed over."""
    return (file for file in root.rglob(pattern) if file.is_file() and not file.name.startswith("."))


def cases_by_id(root: Path, cases: Iterable[Source], expected: str) -> list[Source]:
    """Sort the cases by id, or raise `BadInput` where there are none or two share one."""
    found: dict[str, Source] = {}
    for case in cases:
        if case.id in found:
            raise BadInput(case.image, f"is case {case.id}, which {found[case.id].image} is too", "keep one of them")
        found[case.id] = case
    if not found:
        raise BadInput(root, f"holds no {expected}", "give the folder as downloaded and unpacked")
    return [found[name] for name in sorted(found)]


def read_label(
    case: Source, scan: Volume, values: Iterable[int], reader: Callable[[Path], Volume] = read_nifti
) -> Volume:
    """Return the label of a case as uint8, or raise `BadInput` unless it holds only 0 and `values` on the scan's grid.

    Not for a case that is declared unlabelled.
    """
    path = label_path(case)
    label = as_label(path, reader(path), values)
    check_same_grid(path, label, scan)
    return label


def label_path(case: Source) -> Path:
    """Return the label file of a case that should have one, or raise `BadInput`."""
    if case.label is None:
        raise BadInput(case.image, f"case {case.id} has no label file", "download it again")
    return case.label


def label_box(case: Source, label: Volume, *, past_last: int) -> Box:
    """Return the box of a label to crop around, see `bounding_box`, or raise `BadInput` where the label is empty."""
    box = bounding_box(label.data, past_last=past_last)
    if box is None:
        raise BadInput(label_path(case), "is empty: there is no box to crop around", "leave out --benchmark-crop")
    return box


def as_label(path: Path, volume: Volume, values: Iterable[int]) -> Volume:
    """Return a label as uint8, or raise `BadInput` where it holds anything but 0 and `values`."""
    allowed = {0, *values}
    found = np.unique(volume.data)
    strange = [value for value in found.tolist() if value not in allowed]
    if volume.data.ndim != 3 or strange:
        shown = ", ".join(f"{value:g}" for value in strange[:5]) or f"shape {volume.data.shape}"
        raise BadInput(path, f"label holds {shown}: expected {sorted(allowed)}", "check that it is the right file")
    return Volume(volume.data.astype(np.uint8), volume.affine)


def check_same_grid(path: Path, volume: Volume, image: Volume) -> None:
    """Raise `BadInput` unless a label has its image's shape and lies where the image lies."""
    if difference := grid_difference(image, volume):
        reason = f"field {difference.field} is {difference.second}, that of its image {difference.first}"
        raise BadInput(path, reason, "check the pair")


def check_not_constant(path: Path, volume: Volume) -> None:
    """Raise `BadInput` where every voxel has the same value: there is nothing to normalise by."""
    if volume.data.min() == volume.data.max():
        raise BadInput(path, f"holds the value {volume.data.flat[0]} everywhere", "copy it again from its source")
