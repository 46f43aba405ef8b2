"""Boxes of voxels: found, enlarged, cut out with the geometry that belongs to them.

A box is one (first, past the last) pair of indices per axis, as slices take them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.io.volume import Volume

Bounds = tuple[int, int]
Box = tuple[Bounds, Bounds, Bounds]


def bounding_box(mask: NDArray[Any], *, past_last: int = 1) -> Box | None:
    """Return the smallest box around the voxels of `mask` (X, Y, Z) that are not zero, or None where there are none.

    `past_last` places the upper bound after the last voxel. 1 keeps that voxel and nothing beyond it. Published
    pre-processing was run with 0, which loses the voxel, and with 2; recipes that reproduce it say so.
    """
    bounds = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        found = np.flatnonzero((mask != 0).any(axis=others))
        if found.size == 0:
            return None
        bounds.append((int(found[0]), int(found[-1]) + past_last))
    return bounds[0], bounds[1], bounds[2]


def enlarge(box: Box, shape: Sequence[int], margins: Sequence[Bounds], *, at_least: Sequence[int] = (0, 0, 0)) -> Box:
    """Add (before, after) margins, and half of what the box lacks to `at_least` on each side, within the grid.

    The size asked for is that of the box without its margins; an odd lack is rounded down, and what falls off the grid
    is not made up for on the other side. Margins of zero return the box.
    """
    a, b, c = (
        (max(low - half - before, 0), min(high + half + after, size))
        for (low, high), (before, after), size, half in zip(
            box,
            margins,
            shape,
            (_half(bounds, least) for bounds, least in zip(box, at_least, strict=True)),
            strict=True,
        )
    )
    return a, b, c


def _half(bounds: Bounds, least: int) -> int:
    return max(least - (bounds[1] - bounds[0]), 0) // 2


def stretch(box: Box, shape: Sequence[int], size: Sequence[int]) -> Box:
    """Grow the axes shorter than `size` to it, evenly where the grid has room and shifted inwards where it has not.

    An axis of the grid that is itself shorter is taken whole; see `pad`.
    """
    a, b, c = (_stretch(bounds, extent, wanted) for bounds, extent, wanted in zip(box, shape, size, strict=True))
    return a, b, c


def _stretch(bounds: Bounds, extent: int, wanted: int) -> Bounds:
    low, high = bounds
    width = min(max(high - low, wanted), extent)
    first = min(max(low - (width - (high - low)) // 2, 0), extent - width)
    return first, first + width


def crop(volume: Volume, box: Box) -> Volume:
    """Cut a box out of a volume; its voxels stay where they are in space. The whole grid returns the same volume."""
    data = volume.data[tuple(slice(*bounds) for bounds in box)]
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [low for low, _ in box]
    return Volume(data, affine)


def pad(volume: Volume, size: Sequence[int]) -> Volume:
    """Append zeros at the end of the axes that are shorter than `size`; the affine does not change."""
    lack = [(0, max(wanted - have, 0)) for wanted, have in zip(size, volume.data.shape, strict=False)]
    lack += [(0, 0)] * (volume.data.ndim - 3)
    return volume if not np.any(lack) else Volume(np.pad(volume.data, lack), volume.affine)
