"""The boxes of methods that mix two crops: two thirds of the patch along each axis, as masks made by tensor code."""

from collections.abc import Sequence

import torch
from torch import Tensor


def box_length(length: int) -> int:
    """Return the length of a box along an axis of the patch: 74 of 112, 64 of 96, 53 of 80."""
    return int(2 / 3 * length)


def box_mask(starts: Sequence[Tensor], patch: Sequence[int]) -> Tensor:
    """Return a mask (X, Y, Z) that is true inside the box with these starts, one scalar tensor per axis."""
    mask = torch.ones((), dtype=torch.bool, device=starts[0].device)
    for start, length in zip(starts, patch, strict=True):
        index = torch.arange(length, device=start.device) - start
        mask = mask[..., None] & (index >= 0) & (index < box_length(length))
    return mask


def random_box(patch: Sequence[int], device: torch.device) -> Tensor:
    """Draw a box whose start along each axis is uniform in [0, length - box), and return its mask, (X, Y, Z) bool.

    The bound is exclusive as published, so the last place is never drawn. The number comes from the device's default
    generator: all processes that train together draw the same box.
    """
    places = [max(length - box_length(length), 1) for length in patch]
    return box_mask([torch.randint(count, (), device=device) for count in places], patch)
