"""Two masks on one grid, where one of them covers only a part of the scan, as a DICOM SEG does.

A SEG leaves out slices without foreground, and stores columns, rows and slices in an order of its own. Its voxels are
turned and moved by whole voxels; nothing is resampled.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.io.content import SIZE_LIMIT
from fheat.io.volume import APART, Volume

Indices = NDArray[np.int64]
FARTHEST: Final = 16
"""Number of times that a grid may be larger along an axis than the two masks that it holds together."""


def on_one_grid(first: Volume, second: Volume, partial: tuple[bool, bool]) -> tuple[Volume, Volume]:
    """Return both masks, (X, Y, Z), on the grid of the one that is whole, or on one that holds both if neither is.

    `partial` says for each whether it may cover a part of the scan; beyond it there is background. Two masks on the
    same grid are returned as they are. Raises `ValueError` in words if the voxels do not coincide or do not fit.
    """
    whole = second if partial[0] else first
    turned, starts = zip(*(_turned(volume, whole.affine) for volume in (first, second)), strict=True)
    shapes = [np.array(data.shape) for data in turned]
    if all(partial):
        low = np.minimum(*starts)
        shape = np.maximum(starts[0] + shapes[0], starts[1] + shapes[1]) - low
        if (shape > FARTHEST * (shapes[0] + shapes[1])).any() or np.prod(shape, dtype=float) > SIZE_LIMIT:
            raise ValueError("it lies too far from the other mask to be of the same scan")
    else:
        low, shape = np.zeros(3, np.int64), np.array(whole.data.shape)
    affine = whole.affine.copy()
    affine[:3, 3] += whole.affine[:3, :3] @ low
    placed = [Volume(_placed(data, start - low, shape), affine) for data, start in zip(turned, starts, strict=True)]
    return placed[0], placed[1]


def _turned(volume: Volume, affine: NDArray[np.float64]) -> tuple[NDArray[Any], Indices]:
    """Return the voxels with the axes that `affine` has, and the index of the first of them on that grid."""
    inside = np.linalg.solve(affine, volume.affine)
    whole = np.rint(inside)
    turn = whole[:3, :3]
    corners = np.array(np.meshgrid(*((0, length - 1) for length in volume.data.shape), [1])).reshape(4, -1)
    if np.abs((inside - whole) @ corners).max() > APART or not np.array_equal(turn @ turn.T, np.eye(3)):
        raise ValueError("its voxels do not lie on those of the other mask")
    order = np.abs(turn).argmax(axis=1)
    data, start = volume.data.transpose(order), whole[:3, 3].astype(np.int64)
    for axis in range(3):
        if turn[axis, order[axis]] < 0:
            data = np.flip(data, axis)
            start[axis] -= data.shape[axis] - 1
    return data, start


def _placed(data: NDArray[Any], start: Indices, shape: Indices) -> NDArray[Any]:
    """Return an array of this shape with the data from `start` on, and 0 elsewhere."""
    low, high = np.maximum(start, 0), np.minimum(start + data.shape, shape)
    inside = tuple(slice(max(a - b, 0), max(c - b, 0)) for a, b, c in zip(low, start, high, strict=True))
    if np.count_nonzero(data) != np.count_nonzero(data[inside]):
        raise ValueError("it has labelled voxels outside of the other mask's grid")
    result = np.zeros(tuple(shape), data.dtype)
    result[tuple(slice(a, max(a, b)) for a, b in zip(low, high, strict=True))] = data[inside]
    return result
