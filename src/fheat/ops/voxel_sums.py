"""The sums over voxels from which cross-entropy and all Dice losses are computed, in one pass over the logits."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fheat.ops import kernels

NOWHERE = 255
"""Region of voxels that are left out of all sums, whatever the number of regions."""
MOST_CLASSES = 16
"""Largest number of classes of the fused kernel; with more the plain code runs."""
MOST_REGIONS = 4
"""Largest number of regions of the fused kernel; with more the plain code runs."""
_VOXELS_AT_ONCE = 2**14
"""Number of voxels that are processed together on a CPU, so that they stay in its cache."""


class VoxelSums(NamedTuple):
    """Sums for each sample, region and class; p is the softmax of the logits, g is 1 for a voxel's class, else 0.

    entropy (B, R): sum of -log p of the voxel's class.
    overlap (B, R, K): sum of p g.
    mass (B, R, K): sum of p.
    squares (B, R, K): sum of p^2.
    voxels (B, R, K): sum of g, which has no gradient.
    """

    entropy: Tensor
    overlap: Tensor
    mass: Tensor
    squares: Tensor
    voxels: Tensor

    def split(self, samples: Sequence[int]) -> tuple["VoxelSums", ...]:
        """Return the sums of the first samples[0] samples, of the next samples[1], and so on."""
        fields = (torch.split(field, list(samples)) for field in self)
        return tuple(VoxelSums(*part) for part in zip(*fields, strict=True))


def voxel_sums(logits: Tensor, target: Tensor, region: Tensor | None = None, regions: int = 1) -> VoxelSums:
    """Return the sums that losses need, in float32, or in float64 for float64 logits; gradients reach `logits`.

    Args:
        logits: (B, K, X, Y, Z).
        target: (B, X, Y, Z) whole numbers in [0, K), the class of each voxel.
        region: (B, X, Y, Z) uint8, the region in which a voxel is summed: a number below `regions`, or `NOWHERE`. By
            default all voxels are in region 0.
        regions: R, the number of regions.
    """
    classes = logits.shape[1]
    if kernels.usable(logits) and 2 <= classes <= MOST_CLASSES and regions <= MOST_REGIONS:
        from fheat.ops.kernels.losses import voxel_sums as fused  # Triton takes a second to import

        with kernels.on_device(logits):
            return VoxelSums(*fused(logits, target, region, regions))
    region = torch.zeros_like(target, dtype=torch.uint8) if region is None else region
    whole = logits.flatten(2), target.flatten(1), region.flatten(1)
    size = _VOXELS_AT_ONCE if logits.device.type == "cpu" else whole[1].shape[1]
    parts = zip(*(torch.split(one, size, dim=-1) for one in whole), strict=True)
    sums = [_plain(logits, target, region, regions) for logits, target, region in parts]
    return VoxelSums(*(torch.stack(field).sum(dim=0) for field in zip(*sums, strict=True)))


def _plain(logits: Tensor, target: Tensor, region: Tensor, regions: int) -> VoxelSums:
    """Return the sums for logits (B, K, V), target and region (B, V), by their definition."""
    log_p = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=1)
    surprise = -log_p.gather(1, target[:, None].long())
    inside = _one_hot(region, regions, log_p.dtype)
    entropy = (inside * surprise).sum(dim=2)
    p, g, inside = log_p.exp()[:, None], _one_hot(target, logits.shape[1], log_p.dtype)[:, None], inside[:, :, None]
    inside_p = inside * p  # (B, R, K, V), as the products below
    return VoxelSums(
        entropy=entropy,
        overlap=(inside_p * g).sum(dim=3),
        mass=inside_p.sum(dim=3),
        squares=(inside_p * p).sum(dim=3),
        voxels=(inside * g).sum(dim=3),
    )


def _one_hot(numbers: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return (B, count, V) from (B, V): 1 in the row of a voxel's number, else 0; a larger number gives zeros only."""
    return (numbers[:, None] == torch.arange(count, device=numbers.device)[:, None]).to(dtype)
