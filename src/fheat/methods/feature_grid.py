"""Between the grid of the voxels and the coarser one on which a network has its features.

A voxel of the coarser grid is a cell of s voxels along an axis, s = ceil(X / x): networks pad at the end of an axis.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def at_centres(maps: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the value at the centre voxel of every cell: (..., X, Y, Z) to (..., x, y, z); the same grid is kept."""
    for axis, cells in zip((-3, -2, -1), grid, strict=True):
        length = maps.shape[axis]
        if length != cells:
            side = -(-length // cells)
            centres = torch.arange(cells, device=maps.device) * side + side // 2
            maps = maps.index_select(axis, centres.clamp(max=length - 1))
    return maps


def to_voxels(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Interpolate linearly from cells to voxels: (B, C, x, y, z) to (B, C, X, Y, Z); the same grid is kept."""
    grid = maps.shape[2:]
    if tuple(grid) == tuple(size):
        return maps
    whole = [-(-length // cells) * cells for length, cells in zip(size, grid, strict=True)]
    wide = F.interpolate(maps, size=whole, mode="trilinear", align_corners=False)
    return wide[:, :, : size[0], : size[1], : size[2]]


def vectors(features: Tensor) -> Tensor:
    """Return the features of all voxels, sample by sample: (B, C, x, y, z) to (B x y z, C)."""
    return features.movedim(1, -1).reshape(-1, features.shape[1])
