"""Sums over voxels that cross-entropy and every Dice loss are made of, in one pass over the logits."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fheat.ops import kernels

NOWHERE = 255
"""A region that no voxel is summed in, whatever the number of regions."""
MOST_CLASSES = 16
MOST_REGIONS = 4
"""Beyond these the plain twin does the work."""
_RUN = 2**14
"""Voxels at a time on a CPU: what they need then stays in its cache."""


class VoxelSums(NamedTuple):
    """For each sample, region and class; p is the softmax of the logits, g is 1 for the class of a voxel, else 0.

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
        """Return the sums of the first samples, the next ones, and so on."""
        fields = (torch.split(field, list(samples)) for field in self)
        return tuple(VoxelSums(*part) for part in zip(*fields, strict=True))


def voxel_sums(logits: Tensor, target: Tensor, region: Tensor | None = None, regions: int = 1) -> VoxelSums:
    """Add up what the losses need; gradients reach `logits`. Computed in float32, or float64 for such logits.

    Args:
        logits: (B, K, X, Y, Z).
        target: (B, X, Y, Z) whole numbers in [0, K), the class of each voxel.
        region: (B, X, Y, Z) uint8, in which of the regions a voxel counts: below `regions`, or `NOWHERE` for none.
            Without it all voxels count in region 0.
        regions: R, their number.
    """
    classes = logits.shape[1]
    if kernels.usable(logits) and 2 <= classes <= MOST_CLASSES and regions <= MOST_REGIONS:
        from fheat.ops.kernels.losses import voxel_sums as fused  # Triton takes a second to import

        with kernels.on_device(logits):
            return VoxelSums(*fused(logits, target, region, regions))
    region = torch.zeros_like(target, dtype=torch.uint8) if region is None else region
    whole = logits.flatten(2), target.flatten(1), region.flatten(1)
    run = _RUN if logits.device.type == "cpu" else whole[1].shape[1]
    parts = zip(*(torch.split(one, run, dim=-1) for one in whole), strict=True)
    sums = [_plain(logits, target, region, regions) for logits, target, region in parts]
    return VoxelSums(*(torch.stack(field).sum(dim=0) for field in zip(*sums, strict=True)))


def _plain(logits: Tensor, target: Tensor, region: Tensor, regions: int) -> VoxelSums:
    """Return the sums of logits (B, K, V), target and region (B, V), by their definition."""
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
    """(B, V) to (B, count, V): one where the number is its row's, zeros everywhere for numbers that have no row."""
    return (numbers[:, None] == torch.arange(count, device=numbers.device)[:, None]).to(dtype)
