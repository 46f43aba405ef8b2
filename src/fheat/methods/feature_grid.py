"""Between the grid of the voxels and the coarser one on which a network has its features.

A voxel of the coarser grid is a cell of s voxels along an axis, s = ceil(X / x): networks pad at the end of an axis.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.networks.registry import spec_of


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


def example_features(model: SegmentationNetwork) -> Features:
    """Return what the network makes of one blank patch; the network and the random numbers stay as they were."""
    parameter = next(model.parameters())
    blank = torch.zeros(spec_of(model).example_shape, dtype=parameter.dtype, device=parameter.device)
    with evaluating(model), torch.no_grad():
        return model.forward_features(blank)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in evaluation mode: no dropout, and batch norms by their running statistics."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
