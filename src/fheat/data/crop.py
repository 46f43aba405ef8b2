"""Boxes of voxels: find one around a mask, enlarge it, and cut it out of a volume with the right affine.

A box has one pair (first index, index after the last) per axis, like a slice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.io.volume import Volume

Bounds = tuple[int, int]
Box = tuple[Bounds, Bounds, Bounds]


def bounding_box(mask: NDArray[Any], *, past_last: int = 1) -> Box | None:
    """Return the smallest box around the non-zero voxels of `mask` (X, Y, Z), or None if there are none.

    `past_last` is the distance from the last voxel to the upper bound. With 1 the box ends exactly behind that voxel.
    Published preprocessing also used 0, which loses the voxel, and 2; recipes that reproduce it say so.
    """
    bounds = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        occupied = np.flatnonzero((mask != 0).any(axis=others))
        if occupied.size == 0:
            return None
        bounds.append((int(occupied[0]), int(occupied[-1]) + past_last))
    return bounds[0], bounds[1], bounds[2]


def enlarge(box: Box, shape: Sequence[int], margins: Sequence[Bounds], *, at_least: Sequence[int] = (0, 0, 0)) -> Box:
    """Return the box grown to `at_least` voxels, half on each side, plus margins (before, after), within the grid.

    `at_least` is the size of the box without its margins. Half of an odd number of missing voxels is rounded down. A
    part outside the grid is cut off and not added on the other side. Without margins the box is returned as it is.
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
    """Return the box grown to at least `size` voxels per axis, evenly, but shifted to lie within the grid.

    If an axis of the grid is itself shorter than `size`, the box covers all of it; see `pad`.
    """
    a, b, c = (_stretch(bounds, extent, wanted) for bounds, extent, wanted in zip(box, shape, size, strict=True))
    return a, b, c


def _stretch(bounds: Bounds, extent: int, wanted: int) -> Bounds:
    low, high = bounds
    width = min(max(high - low, wanted), extent)
    first = min(max(low - (width - (high - low)) // 2, 0), extent - width)
    return first, first + width


def crop(volume: Volume, box: Box) -> Volume:
    """Return the voxels of a box as a volume whose affine keeps them in place. The whole grid gives the same volume."""
    data = volume.data[tuple(slice(*bounds) for bounds in box)]
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [low for low, _ in box]
    return Volume(data, affine)


def pad(volume: Volume, size: Sequence[int]) -> Volume:
    """Return the volume with zeros appended to axes that are shorter than `size`; the affine does not change."""
    widths = [(0, max(wanted - length, 0)) for wanted, length in zip(size, volume.data.shape, strict=False)]
    widths += [(0, 0)] * (volume.data.ndim - 3)
    return volume if not np.any(widths) else Volume(np.pad(volume.data, widths), volume.affine)
