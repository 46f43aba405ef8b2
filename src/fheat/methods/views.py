"""Parts of methods that compare views of a crop: the changes of intensity and the masking that make a strong view.

Every random number is drawn on the device of the images from its default generator, for the batch of all processes
together, of which each process uses its rows.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.system import processes

EXPONENTS = 0.7, 1.5
"""Smallest and largest exponent of `gamma`."""
LARGEST = 0.1
"""Largest deviation of the noise."""
PROBABILITY = 0.5
"""Chance that a crop gets noise."""
KEEP = 0.5
"""Chance that a block of `soft_mask` is kept."""


class NoiseDraws(NamedTuple):
    """Random numbers drawn for the noise of crops (B, C, X, Y, Z).

    strength: (B, 1, 1, 1, 1), uniform in [0, 1), the deviation as a share of the largest.
    chance: (B, 1, 1, 1, 1), uniform in [0, 1), by which a crop gets noise at all.
    white: in the shape of the crops, standard normal.
    """

    strength: Tensor
    chance: Tensor
    white: Tensor


def gamma(images: Tensor, low: Tensor, high: Tensor, exponents: tuple[float, float] = EXPONENTS) -> Tensor:
    """Return ((x - low) / (high - low))^g with one g per crop, uniform between the exponents.

    Shapes: images (B, C, X, Y, Z); `low` and `high`, (B, C), are the extremes of the whole scan, so that all crops of
    it are treated alike. The result stays in [0, 1]; it is not mapped back. An exponent of one only rescales.
    """
    return raised(images, low, high, draw_power(images, exponents))


def draw_power(images: Tensor, exponents: tuple[float, float] = EXPONENTS) -> Tensor:
    """Draw the exponents of `gamma`, (B, 1, 1, 1, 1)."""
    group = processes.current()
    power = torch.empty(group.size * len(images), 1, 1, 1, 1, device=images.device).uniform_(*exponents)
    return group.rows(power)


def raised(images: Tensor, low: Tensor, high: Tensor, power: Tensor) -> Tensor:
    """Return what `gamma` does with these exponents, (B, 1, 1, 1, 1)."""
    low, high = (bound.view(*bound.shape, 1, 1, 1) for bound in (low, high))
    return ((images - low) / (high - low + 1e-7)).clamp(min=0).pow(power)


def noise(images: Tensor, largest: float = LARGEST, probability: float = PROBABILITY) -> Tensor:
    """Add white noise to each crop with the given probability, its deviation uniform up to `largest`."""
    return add_noise(images, draw_noise(images), largest, probability)


def draw_noise(images: Tensor) -> NoiseDraws:
    """Draw the numbers of `noise`."""
    group = processes.current()
    count, channels, *grid = images.shape
    shape = (group.size * count, 1, 1, 1, 1)
    strength, chance = torch.rand(shape, device=images.device), torch.rand(shape, device=images.device)
    # Crops lie in memory channel by channel, and that is the order of the draws.
    white = torch.empty(channels, shape[0], *grid, dtype=images.dtype, device=images.device).transpose(0, 1)
    return NoiseDraws(*(group.rows(drawn) for drawn in (strength, chance, white.normal_())))


def add_noise(images: Tensor, draws: NoiseDraws, largest: float = LARGEST, probability: float = PROBABILITY) -> Tensor:
    """Return what `noise` does with these numbers."""
    deviation = torch.where(draws.chance < probability, draws.strength * largest, 0.0)
    return images + deviation * draws.white


def soft_mask(images: Tensor, block: int = 16, keep: float = KEEP) -> Tensor:
    """Multiply each crop by a random block pattern, interpolated trilinearly, so that most voxels are dimmed.

    Blocks of `block` voxels are kept with probability `keep` before the interpolation; keeping all changes nothing.
    """
    return dimmed(images, draw_kept(images, block), keep)


def draw_kept(images: Tensor, block: int = 16) -> Tensor:
    """Draw the blocks of `soft_mask`, (B, 1, x, y, z), uniform in [0, 1); those above 1 - keep are kept."""
    group = processes.current()
    grid = [max(round(length / block), 1) for length in images.shape[2:]]
    return group.rows(torch.rand(group.size * len(images), 1, *grid, device=images.device))


def dimmed(images: Tensor, kept: Tensor, keep: float = KEEP) -> Tensor:
    """Return what `soft_mask` does with these blocks."""
    pattern = (kept > 1 - keep).to(images.dtype)
    return images * F.interpolate(pattern, size=images.shape[2:], mode="trilinear", align_corners=False)
