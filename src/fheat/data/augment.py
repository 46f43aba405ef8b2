"""Augmentations as batched tensor code: drawn and applied on the device of the images, without asking the host.

Shapes: images (B, C, X, Y, Z). Every function draws from the device's default generator, for the whole batch of a
group of processes, and uses the rows of this one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.group import ALONE, Group


def gamma(
    images: Tensor, low: Tensor, high: Tensor, exponents: tuple[float, float] = (0.7, 1.5), *, group: Group = ALONE
) -> Tensor:
    """((x - low) / (high - low))^g with one g per sample, uniform between the exponents.

    `low` and `high`, (B, C), are the extremes of the whole scan, so crops of it are treated alike. The result stays in
    [0, 1]; it is not mapped back. An exponent of one only rescales.
    """
    power = torch.empty(group.size * len(images), 1, 1, 1, 1, device=images.device).uniform_(*exponents)
    low, high = (bound.view(*bound.shape, 1, 1, 1) for bound in (low, high))
    return ((images - low) / (high - low + 1e-7)).clamp(min=0).pow(group.rows(power))


def noise(images: Tensor, largest: float = 0.1, probability: float = 0.5, *, group: Group = ALONE) -> Tensor:
    """Add white noise to each sample with the given probability, its deviation uniform up to `largest`."""
    count, channels, *grid = images.shape
    shape = (group.size * count, 1, 1, 1, 1)
    amount = torch.rand(shape, device=images.device) * largest
    amount = torch.where(torch.rand(shape, device=images.device) < probability, amount, 0.0)
    # Crops lie in memory channel by channel, and that is the order of the draws.
    white = torch.empty(channels, len(amount), *grid, dtype=images.dtype, device=images.device).transpose(0, 1)
    return images + group.rows(amount) * group.rows(white.normal_())


def soft_mask(images: Tensor, block: int = 16, keep: float = 0.5, *, group: Group = ALONE) -> Tensor:
    """Multiply each sample by a random block pattern, interpolated trilinearly, so that most voxels are dimmed.

    Blocks of `block` voxels are kept with probability `keep` before the interpolation.
    """
    grid = [round(length / block) for length in images.shape[2:]]
    kept = group.rows(torch.rand(group.size * len(images), 1, *grid, device=images.device) > 1 - keep)
    return images * F.interpolate(kept.to(images.dtype), size=images.shape[2:], mode="trilinear", align_corners=False)
