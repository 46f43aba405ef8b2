"""The largest component of each mask of a batch, by fused kernels that a captured graph can hold.

The plain twin is `fheat.ops.largest_component.largest_component`; with the same number of rounds both return the same
masks.
"""

import torch
from torch import Tensor

from fheat.ops.kernels.device import largest_component as device

_BLOCK = 1024
"""Number of voxels that a program works on."""
_HOPS = 16
"""Number of parents that a voxel climbs in each round."""


def largest_component(masks: Tensor, rounds: int) -> Tensor:
    """Keep the largest 26-connected component of each mask, (B, X, Y, Z) bool; an empty mask stays empty."""
    samples, *grid = masks.shape
    voxels = grid[0] * grid[1] * grid[2]
    programs = samples, -(-voxels // _BLOCK)
    roots, parents = (torch.empty(samples, voxels, dtype=torch.int32, device=masks.device) for _ in range(2))
    device.begin[programs](masks.contiguous().view(torch.uint8), roots, parents, voxels, BLOCK=_BLOCK)
    for last in [False] * (rounds - 1) + [True]:
        device.hook[programs](roots, parents, *grid, BLOCK=_BLOCK)
        device.climb[programs](roots, parents, voxels, HOPS=_HOPS, BLOCK=_BLOCK)
        if not last:
            device.reset[programs](parents, voxels, BLOCK=_BLOCK)
    sizes = torch.zeros_like(roots)
    device.count[programs](roots, sizes, voxels, BLOCK=_BLOCK)
    winner = sizes.argmax(dim=1, keepdim=True) + 1
    return (roots == winner).view_as(masks)
