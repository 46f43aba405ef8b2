"""Classes of a dataset: what each output channel of a network stands for, and that labels keep to it.

Channels are exclusive classes (background, class 1, ...) or, where a dataset declares classes with several label
values, nested regions, outermost first: whole tumour {1, 2, 3}, tumour core {2, 3}, enhancing tumour {3}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Dataset
from fheat.data.planes import slowest_axis
from fheat.io.volume import Volume
from fheat.system.errors import BadInput


@dataclass(frozen=True)
class Classes:
    """Names of the output channels, and for nested regions the label values inside each."""

    names: tuple[str, ...]
    regions: tuple[tuple[int, ...], ...] = ()

    @property
    def values(self) -> tuple[int, ...]:
        """Label values that may occur."""
        if self.regions:
            return (0, *sorted(self.regions[0]))
        return tuple(range(len(self.names)))

    @property
    def painted(self) -> tuple[int, ...]:
        """Label value that stands for each region in a mask: one that no inner region has. Empty without regions."""
        inner = (*self.regions[1:], ())
        return tuple(
            min(set(values) - set(within)) for values, within in zip(self.regions, inner, strict=bool(self.regions))
        )

    def masks(self, label: NDArray[Any]) -> list[NDArray[np.bool_]]:
        """Return the mask of each class but the background, or of each region, from a label (X, Y, Z)."""
        if self.regions:
            return [np.isin(label, values) for values in self.regions]
        return [label == value for value in range(1, len(self.names))]

    def check(self, path: Path, label: NDArray[Any]) -> None:
        """Raise `BadInput` where a label has values that are no class: the loss would count them as another."""
        lowest, highest = int(label.min()), int(label.max())
        other = [lowest] if lowest < 0 else [highest] if highest > max(self.values) else []
        if self.regions and not other:
            other = sorted(set(np.unique(label).tolist()) - set(self.values))
        if other:
            value = other[0]
            if self.regions:
                regions = zip(self.names, self.regions, strict=True)
                listed = ", ".join(f"{name} {list(values)}" for name, values in regions)
            else:
                listed = ", ".join(f"{number} {name}" for number, name in enumerate(self.names))
            raise BadInput(path, f"holds the label {value}; the classes are {listed}", "correct it or name the class")


LARGEST_VALUE: Final = 255
"""Largest label value that can be stored."""


def classes_of(dataset: Dataset, *, regions: bool = False) -> Classes:
    """Return the classes of a dataset, as nested regions where asked for, or raise `BadInput`."""
    values = [value for group in dataset.labels.values() for value in group]
    if wrong := [value for value in values if not 0 <= value <= LARGEST_VALUE]:
        reason = f"declares the label value {wrong[0]}, outside 0 to {LARGEST_VALUE}"
        raise BadInput(dataset.root, reason, "number the classes 0, 1, 2 and so on")
    if regions:
        return _regions(dataset)
    names = class_names(dataset.labels)
    if len(names) < 2:
        remedy = "name its classes, see docs/reference/data.md"
        raise BadInput(dataset.root, "names no class beside the background", remedy)
    return Classes(names)


def has_regions(dataset: Dataset) -> bool:
    """Return whether a dataset declares a class with several label values."""
    return any(len(values) > 1 for values in dataset.labels.values())


def declared_values(dataset: Dataset) -> set[int]:
    """Return the label values of all classes: those that the dataset declares, else 0 and 1 as for two classes."""
    return {value for group in dataset.labels.values() for value in group} or {0, 1}


def class_names(labels: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names of the classes 0, 1, ...; two, background and foreground, where a dataset names none."""
    if not labels:
        return "background", "foreground"
    named = {values[0]: name for name, values in labels.items() if len(values) == 1}
    last = max(value for values in labels.values() for value in values)
    return tuple(named.get(value, f"label {value}") for value in range(last + 1))


def _regions(dataset: Dataset) -> Classes:
    """Return the declared classes as regions, the outermost first, each inside the one before it."""
    declared = {name: tuple(sorted(values)) for name, values in dataset.labels.items() if tuple(values) != (0,)}
    ordered = sorted(declared.items(), key=lambda item: -len(item[1]))
    if not ordered:
        remedy = "name them with their label values, see docs/reference/data.md"
        raise BadInput(dataset.root, "names no regions", remedy)
    for (outer, around), (inner, within) in pairwise(ordered):
        if not set(within) < set(around):
            reason = f"has regions that are not nested: {inner} {list(within)} is not inside {outer} {list(around)}"
            raise BadInput(dataset.root, reason, "set data.regions to no, which trains exclusive classes")
    return Classes(tuple(name for name, _ in ordered), tuple(values for _, values in ordered))


def label_counts(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the number of voxels of each value from 0 to 255."""
    counts = np.zeros(LARGEST_VALUE + 1, dtype=np.int64)
    for plane in np.moveaxis(labels, slowest_axis(labels), 0):  # one at a time, as counting converts to 64 bits
        counts += np.bincount(plane.ravel(order="K"), minlength=LARGEST_VALUE + 1)
    return counts


def millilitres(mask: Volume, classes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the volume of each class of a mask (X, Y, Z), which is that of all its label values."""
    voxel = abs(float(np.linalg.det(mask.affine[:3, :3]))) / 1000
    counts = label_counts(mask.data)
    return {name: round(int(counts[list(values)].sum()) * voxel, 3) for name, values in classes.items()}
