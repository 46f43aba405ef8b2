"""The grid that all scans of a run are brought to, their sizes on it, and the crops that fit into them."""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from fheat.data.case import Spacing
from fheat.data.orientation import reorient
from fheat.data.preprocessing import Preprocessing
from fheat.data.resample import target_size
from fheat.io.volume import Volume

Size = tuple[int, int, int]
SMALLEST_SHARE_OF_SCAN: Final = 0.5
"""Smallest share of a crop that must come from the scan; the rest may be padding."""
_UNIT: Final = 16
"""Number of voxels of which the sides of a suggested crop are multiples."""


def outline(volume: Volume) -> Volume:
    """Return the grid of a volume without its voxels: zeros that take no memory."""
    return Volume(np.broadcast_to(np.uint8(0), volume.data.shape), volume.affine)


def common_grid(outlines: Sequence[Volume], wanted: Preprocessing) -> Preprocessing:
    """Return the preprocessing that brings all scans to one grid.

    Orientation and spacing are the wanted ones; else the orientation of the scans where they agree, RAS where they do
    not, and the median of their spacings along each axis.
    """
    orientations = {outline.orientation for outline in outlines}
    orientation = wanted.orientation or (orientations.pop() if len(orientations) == 1 else "RAS")
    spacings = np.array([reorient(outline, orientation).spacing for outline in outlines])
    x, y, z = (float(step) for step in np.median(spacings, axis=0))
    spacing: Spacing = wanted.spacing or (x, y, z)
    return wanted.model_copy(update={"orientation": orientation, "spacing": spacing})


def size_on(outline: Volume, grid: Preprocessing) -> Size:
    """Return the number of voxels that a scan has on a grid, along the axes of the grid."""
    turned = reorient(outline, grid.orientation or outline.orientation)
    steps = grid.steps(turned.spacing)
    x, y, z = (target_size(length, step) for length, step in zip(turned.data.shape[:3], steps, strict=True))
    return x, y, z


def share_inside(size: Sequence[int], patch: Size) -> float:
    """Return the share of a crop that comes from a scan of this size; 1 if the crop fits into it."""
    return prod(min(length, side) / side for length, side in zip(size, patch, strict=True))


def fitting_patch(sizes: Sequence[Sequence[int]], patch: Size) -> Size:
    """Return the crop itself if it fits into all scans well enough, else one with sides of multiples of 16 that does.

    A side is no longer than before. It has at least 32 voxels, which the networks of this package need, or 16 where a
    scan is too thin for that; one that is too thin for 16 has no fitting crop.
    """
    if all(share_inside(size, patch) >= SMALLEST_SHARE_OF_SCAN for size in sizes):
        return patch
    shortest = np.min(np.array(sizes), axis=0).tolist()
    for least in (2 * _UNIT, _UNIT):
        x, y, z = (min(side, max(length // _UNIT * _UNIT, least)) for length, side in zip(shortest, patch, strict=True))
        if all(share_inside(size, (x, y, z)) >= SMALLEST_SHARE_OF_SCAN for size in sizes):
            break
    return x, y, z
