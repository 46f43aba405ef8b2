"""Boxes around objects in the slices of a scan: from a file, or around the labels of a mask."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from fheat.system.errors import BadInput
from fheat.system.files import TEXT_LIMIT, read_capped
from fheat.system.settings import Count, Section, reason_of

Axis = int


@dataclass(frozen=True)
class Box:
    """A box in one slice: voxels low <= index < high along the two axes of the slice, in their order."""

    label: int
    slice: int
    low: tuple[int, int]
    high: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the box as plain data."""
        return asdict(self)


class BoxEntry(Section):
    """An object in a file of boxes."""

    label: Annotated[int, Field(ge=1, le=255)] = 1
    """Value of the object in the mask."""
    slice: Count | None = None
    """Index of the slice for a box in one slice; none for a box in all three axes."""
    box: Annotated[list[Count], Field(min_length=4, max_length=6)]
    """Lowest and then highest indices, the highest not included: a0, b0, a1, b1 along the two axes of a slice, or x0,
    y0, z0, x1, y1, z1."""


def plane_axes(axis: Axis) -> tuple[int, int]:
    """Return the two axes of the slices across an axis, in their order: columns and rows of the image."""
    first, second = (other for other in range(3) if other != axis)
    return first, second


def slicing_axis(spacing: Sequence[float]) -> Axis:
    """Return the axis across which slices are thickest, the last one of several."""
    return max(range(3), key=lambda axis: (round(spacing[axis], 4), axis))


def read_boxes(path: str | Path, shape: Sequence[int], axis: Axis) -> list[Box]:
    """Read a JSON list of `BoxEntry` for a scan of this shape, or raise `BadInput`."""
    try:
        entries = TypeAdapter(list[BoxEntry]).validate_json(read_capped(path, TEXT_LIMIT))
    except FileNotFoundError:
        raise BadInput(path, "does not exist", "check the path") from None
    except ValidationError as error:
        remedy = 'write [{"label": 1, "slice": 12, "box": [a0, b0, a1, b1]}, ...]'
        raise BadInput(path, f"field {reason_of(error, BoxEntry.model_fields)}", remedy) from None
    boxes = [box for number, entry in enumerate(entries) for box in _boxes(path, number, entry, shape, axis)]
    if not boxes:
        raise BadInput(path, "holds no box", "give at least one")
    return boxes


def boxes_of_mask(mask: NDArray[Any], axis: Axis, *, margin: int = 0, jitter: int = 0, seed: int = 0) -> list[Box]:
    """Return the smallest box around every label in every slice that has it, (X, Y, Z) across `axis`.

    Args:
        mask: labels; 0 is background.
        axis: axis across which slices are cut.
        margin: number of voxels by which each side is moved outwards.
        jitter: largest number of voxels by which each side is moved at random, in or out, after that.
        seed: seed of these moves.

    Boxes stay inside the slice and keep at least one voxel.
    """
    generator = np.random.default_rng(seed)
    planes = np.moveaxis(mask, axis, 0)
    boxes = []
    for label in (int(value) for value in np.unique(mask) if value > 0):
        for index in np.flatnonzero((planes == label).any(axis=(1, 2))):
            inside = planes[index] == label
            sides = []
            for other, length in enumerate(inside.shape):
                filled = np.flatnonzero(inside.any(axis=1 - other))
                moved = generator.integers(-jitter, jitter + 1, size=2) if jitter else (0, 0)
                low = min(max(int(filled[0]) - margin - int(moved[0]), 0), length - 1)
                sides.append((low, min(max(int(filled[-1]) + 1 + margin + int(moved[1]), low + 1), length)))
            (a0, a1), (b0, b1) = sides
            boxes.append(Box(label, int(index), (a0, b0), (a1, b1)))
    return boxes


def _boxes(path: str | Path, number: int, entry: BoxEntry, shape: Sequence[int], axis: Axis) -> list[Box]:
    """Return the boxes of one entry: one, or one for each slice of a box in three axes."""
    first, second = plane_axes(axis)
    if (len(entry.box) == 4) != (entry.slice is not None) or len(entry.box) == 5:
        reason = f"box {number}: has {len(entry.box)} numbers" + ("" if entry.slice is None else " and a slice")
        raise BadInput(path, reason, "give four numbers and a slice, or six numbers")
    if entry.slice is not None:
        a0, b0, a1, b1 = entry.box
        low, high = {first: a0, second: b0, axis: entry.slice}, {first: a1, second: b1, axis: entry.slice + 1}
    else:
        low, high = dict(enumerate(entry.box[:3])), dict(enumerate(entry.box[3:]))
    if any(not low[each] < high[each] <= shape[each] for each in range(3)):
        reason = f"box {number}: {entry.box} is empty or leaves the scan of shape {tuple(shape)}"
        raise BadInput(path, reason, "give lowest indices, then highest ones, which are not included")
    return [
        Box(entry.label, index, (low[first], low[second]), (high[first], high[second]))
        for index in range(low[axis], high[axis])
    ]
