"""From one voxel grid to another along its own axes, and back.

Two grids share their centre. Index `i` of `n` target voxels lies at

    x(i) = (i - (n - 1) / 2) * step + (m - 1) / 2

among `m` source voxels, where `step` is the target spacing over the source spacing. Because centres meet, flipping an
axis before or after gives the same voxels. Values are linear between neighbours; beyond the border they are those of
the border voxel. With equal spacing `x(i) = i` and the source is returned as it is.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fheat.data.case import Spacing
from fheat.io.volume import Volume

_SAME_SPACING: Final = 1e-3
"""Relative difference below which two spacings of an axis count as equal."""


_MOST_PLANES: Final = 2**53
"""Largest size of an axis: more than any machine holds, and still a whole number in float64."""


def target_size(size: int, step: float) -> int:
    """Return how many voxels of `step` source voxels each cover `size` source voxels, at least one."""
    return max(1, round(min(size / step, _MOST_PLANES)))


def coordinates(size: int, step: float, target: int, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
    """Return where the target's voxel centres `start` to `stop` lie among the source's; see the module's formula."""
    indices = np.arange(start, target if stop is None else stop)
    return np.asarray((indices - (target - 1) / 2) * step + (size - 1) / 2, dtype=np.float64)


def interpolate(x: Tensor, axis: int, where: NDArray[np.float64]) -> Tensor:
    """Read `x` at fractional indices along one axis: linear between neighbours, constant beyond the border.

    Whole indices inside, one after the other, give a view.
    """
    size, first = x.shape[axis], int(where[0]) if where.size else -1
    if 0 <= first <= size - where.size and np.array_equal(where, np.arange(first, first + where.size)):
        return x.narrow(axis, first, where.size)
    inside = where.clip(0, size - 1)
    below = np.floor(inside).astype(np.int64).clip(0, max(size - 2, 0))
    weight = torch.as_tensor(inside - below, dtype=x.dtype, device=x.device)
    low = torch.as_tensor(below, device=x.device)
    shape = [1] * x.ndim
    shape[axis] = -1
    return torch.lerp(
        x.index_select(axis, low), x.index_select(axis, (low + 1).clamp(max=size - 1)), weight.view(shape)
    )


def nearest(x: NDArray[np.generic], axis: int, where: NDArray[np.float64]) -> NDArray[np.generic]:
    """Read `x` at the nearest indices along one axis; halfway goes to the even one."""
    return x.take(np.rint(where).astype(np.int64).clip(0, x.shape[axis] - 1), axis=axis)


def steps_between(source: Spacing, target: Spacing | None) -> Spacing:
    """Return target over source spacing per axis; exactly 1 where they differ by less than a thousandth.

    Without a target all steps are 1.
    """
    ratios = [1.0] * 3 if target is None else [there / here for here, there in zip(source, target, strict=True)]
    a, b, c = (1.0 if abs(ratio - 1) < _SAME_SPACING else ratio for ratio in ratios)
    return a, b, c


def resample(volume: Volume, spacing: Spacing, *, labels: bool = False) -> Volume:
    """Return the volume with another spacing, same axes and centre: linear as float32, or nearest for labels.

    Shapes: (X, Y, Z) or (X, Y, Z, C) to (X', Y', Z') or (X', Y', Z', C). The same spacing returns the volume itself.
    """
    steps = steps_between(volume.spacing, spacing)
    if steps == (1.0, 1.0, 1.0):
        return volume
    sizes = volume.data.shape[:3]
    targets = [target_size(size, step) for size, step in zip(sizes, steps, strict=True)]
    places = [coordinates(*grid) for grid in zip(sizes, steps, targets, strict=True)]
    if labels:
        data = volume.data
        for axis, where in enumerate(places):
            data = nearest(data, axis, where)
    else:
        x = torch.from_numpy(np.ascontiguousarray(volume.data, dtype=np.float32))
        for axis, where in enumerate(places):
            x = interpolate(x, axis, where)
        data = x.numpy()
        data = data.copy() if np.may_share_memory(data, volume.data) else data  # `interpolate` may return a view
    return Volume(data, scaled_affine(volume.affine, sizes, steps, targets))


def scaled_affine(
    affine: NDArray[np.float64], sizes: tuple[int, ...], steps: Spacing, targets: list[int]
) -> NDArray[np.float64]:
    """Return the affine of the target grid: columns times `steps`, centres kept together."""
    change = np.diag([*steps, 1.0])
    for axis, (size, step, target) in enumerate(zip(sizes, steps, targets, strict=True)):
        change[axis, 3] = (size - 1) / 2 - step * (target - 1) / 2
    return affine @ change
