"""Signed distance maps of labelled crops, the shape target of SASSNet, as tensor code that a graph can capture."""

import torch
from torch import Tensor

_NUMBERS_AT_ONCE = 2**25
"""Largest number of sums of two numbers that are held in memory together."""


@torch.no_grad()
def signed_distances(labels: Tensor, classes: int) -> Tensor:
    """Return the distance to the border of every class but the background, (B, K - 1, X, Y, Z) float32 in [-1, 1].

    Outside a class, the Euclidean distance in voxels to it; inside, minus the distance to what is outside; each divided
    by its largest value in the crop. Voxels of the class with a face on the outside are 0. What lies beyond the crop
    counts as neither. A class without a border in the crop, which fills all of it or none, is 0 everywhere.

    Shapes: labels (B, X, Y, Z), whole numbers in [0, K).
    """
    kinds = torch.arange(1, classes, device=labels.device).view(1, -1, 1, 1, 1)
    inside = labels[:, None] == kinds
    axes = (-3, -2, -1)
    outer, inner = squared_distances(torch.stack([inside, ~inside])).sqrt()
    found = outer / outer.amax(axes, keepdim=True) - inner / inner.amax(axes, keepdim=True)
    bordered = inside.any(-1).any(-1).any(-1) & (~inside).any(-1).any(-1).any(-1)
    return torch.where(bordered[..., None, None, None] & (inner != 1), found, 0.0)


def squared_distances(mask: Tensor) -> Tensor:
    """Return the exact squared distance in voxels to the nearest voxel that is set: (..., X, Y, Z) to float32.

    d^2(x, y, z) = min over x' of (x - x')^2 + min over y' of (y - y')^2 + min over z' of (z - z')^2, of voxels that are
    set, so that one axis follows the other. Whole numbers this small are exact in float32. Where no voxel is set, the
    result is X^2 + Y^2 + Z^2, which is larger than any distance.
    """
    far = float(sum(length**2 for length in mask.shape[-3:]))
    found = far * (~mask).float()
    for axis in (-3, -2, -1):
        found = _nearest_along(found, axis)
    return found


def _nearest_along(values: Tensor, axis: int) -> Tensor:
    """Return min over j of values_j + (i - j)^2 at every place i of an axis; n^2 sums for an axis of n voxels."""
    first = values.movedim(axis, 0)
    lines = first.flatten(1)
    place = torch.arange(len(lines), device=values.device, dtype=values.dtype)
    steps = (place[:, None] - place).square()
    some = torch.split(steps, max(1, _NUMBERS_AT_ONCE // lines.numel()))
    nearest = torch.cat([(squares[:, :, None] + lines).amin(dim=1) for squares in some])
    return nearest.view(first.shape).movedim(0, axis)
