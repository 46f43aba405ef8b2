"""Augmentations as batched tensor code: drawn and applied on the device of the images, without asking the host.

Shapes: images (B, C, X, Y, Z). Every function draws from the device's default generator.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def gamma(images: Tensor, low: Tensor, high: Tensor, exponents: tuple[float, float] = (0.7, 1.5)) -> Tensor:
    """((x - low) / (high - low))^g with one g per sample, uniform between the exponents.

    `low` and `high`, (B, C), are the extremes of the whole scan, so crops of it are treated alike. The result stays in
    [0, 1]; it is not mapped back. An exponent of one only rescales.
    """
    power = torch.empty(len(images), 1, 1, 1, 1, device=images.device).uniform_(*exponents)
    low, high = (bound.view(*bound.shape, 1, 1, 1) for bound in (low, high))
    return ((images - low) / (high - low + 1e-7)).clamp(min=0).pow(power)


def noise(images: Tensor, largest: float = 0.1, probability: float = 0.5) -> Tensor:
    """Add white noise to each sample with the given probability, its deviation uniform up to `largest`."""
    shape = (len(images), 1, 1, 1, 1)
    amount = torch.rand(shape, device=images.device) * largest
    amount = torch.where(torch.rand(shape, device=images.device) < probability, amount, 0.0)
    return images + amount * torch.randn_like(images)


def soft_mask(images: Tensor, block: int = 16, keep: float = 0.5) -> Tensor:
    """Multiply each sample by a random block pattern, interpolated trilinearly, so that most voxels are dimmed.

    Blocks of `block` voxels are kept with probability `keep` before the interpolation.
    """
    grid = [round(length / block) for length in images.shape[2:]]
    kept = (torch.rand(len(images), 1, *grid, device=images.device) > 1 - keep).to(images.dtype)
    return images * F.interpolate(kept, size=images.shape[2:], mode="trilinear", align_corners=False)
