"""Parts of methods that compare views of a crop: the changes of intensity and the masking that make a strong view.

Every random number is drawn on the device of the images from its default generator, for the batch of all processes
together, of which each process uses its rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.system import processes


def gamma(images: Tensor, low: Tensor, high: Tensor, exponents: tuple[float, float] = (0.7, 1.5)) -> Tensor:
    """Return ((x - low) / (high - low))^g with one g per crop, uniform between the exponents.

    Shapes: images (B, C, X, Y, Z); `low` and `high`, (B, C), are the extremes of the whole scan, so that all crops of
    it are treated alike. The result stays in [0, 1]; it is not mapped back. An exponent of one only rescales.
    """
    group = processes.current()
    power = torch.empty(group.size * len(images), 1, 1, 1, 1, device=images.device).uniform_(*exponents)
    low, high = (bound.view(*bound.shape, 1, 1, 1) for bound in (low, high))
    return ((images - low) / (high - low + 1e-7)).clamp(min=0).pow(group.rows(power))


def noise(images: Tensor, largest: float = 0.1, probability: float = 0.5) -> Tensor:
    """Add white noise to each crop with the given probability, its deviation uniform up to `largest`."""
    group = processes.current()
    count, channels, *grid = images.shape
    shape = (group.size * count, 1, 1, 1, 1)
    deviation = torch.rand(shape, device=images.device) * largest
    deviation = torch.where(torch.rand(shape, device=images.device) < probability, deviation, 0.0)
    # Crops lie in memory channel by channel, and that is the order of the draws.
    white = torch.empty(channels, len(deviation), *grid, dtype=images.dtype, device=images.device).transpose(0, 1)
    return images + group.rows(deviation) * group.rows(white.normal_())


def soft_mask(images: Tensor, block: int = 16, keep: float = 0.5) -> Tensor:
    """Multiply each crop by a random block pattern, interpolated trilinearly, so that most voxels are dimmed.

    Blocks of `block` voxels are kept with probability `keep` before the interpolation; keeping all changes nothing.
    """
    group = processes.current()
    grid = [round(length / block) for length in images.shape[2:]]
    kept = group.rows(torch.rand(group.size * len(images), 1, *grid, device=images.device) > 1 - keep)
    return images * F.interpolate(kept.to(images.dtype), size=images.shape[2:], mode="trilinear", align_corners=False)
