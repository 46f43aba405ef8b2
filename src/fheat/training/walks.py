"""Walks through stored volumes: a crop, mirrored and turned, is a first voxel and a signed step for each axis."""

from typing import Literal

import torch
from torch import Tensor

from fheat.data.store import Size, VolumeStore, corners_at

Augment = Literal["none", "mirror", "rotate"]


def walks_of(
    store: VolumeStore, cases: Tensor, places: Tensor, chances: Tensor, patch: Size, augment: Augment
) -> Tensor:
    """Return (iterations, B, 5) int64, rows (a, x, y, z, case): voxel (i, j, k) of an augmented crop is voxel
    a + i x + j y + k z of the stored ones.

    Shapes: cases (iterations, B), places and chances (iterations, B, 3). Augmentation is that of
    `fheat.training.batches.augmented`; without it x, y, z are the strides of the volume.
    """
    shapes = store.shapes[cases]
    steps = [shapes[..., 1] * shapes[..., 2], shapes[..., 2], torch.ones_like(cases)]
    corners = corners_at(places.flatten(0, 1), shapes.flatten(0, 1), patch).view_as(places)
    first = store.starts[cases] + sum(corners[..., axis] * step for axis, step in enumerate(steps))
    if augment == "rotate":
        quarters = (4 * chances[..., 0]).long()
        for count in range(3):  # a quarter reads the voxel (j, n - 1 - i)
            turned = quarters > count
            first = torch.where(turned, first + (patch[1] - 1) * steps[1], first)
            steps[:2] = torch.where(turned, -steps[1], steps[0]), torch.where(turned, steps[0], steps[1])
    for axis, chosen in enumerate(_mirrored_axes(chances, augment)):
        first = torch.where(chosen, first + (patch[axis] - 1) * steps[axis], first)
        steps[axis] = torch.where(chosen, -steps[axis], steps[axis])
    return torch.stack([first, *steps, cases], dim=-1)


def _mirrored_axes(chances: Tensor, augment: Augment) -> list[Tensor]:
    """Return for some axes, from the first on, which crops are reversed along it, each (iterations, B) bool."""
    if augment == "mirror":
        return list((chances < 0.5).unbind(dim=-1))
    below = chances[..., 1] < 0.5
    return [below, ~below] if augment == "rotate" else []
