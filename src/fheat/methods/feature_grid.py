"""Features of a network as rows, one per voxel of their own grid, and labels that are reduced to that grid."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fheat.networks.base import Features, SegmentationNetwork
from fheat.networks.registry import spec_of


def rows_of(features: Tensor) -> Tensor:
    """Return the vector of every voxel, sample after sample: (B, C, x, y, z) to (B x y z, C)."""
    return features.movedim(1, -1).flatten(0, -2)


def labels_on_grid(labels: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the label in the centre of every cell: (B, X, Y, Z) to (B, x, y, z).

    A cell measures s = ceil(X / x) voxels along an axis, and its centre is voxel s // 2 of it, or the last voxel of the
    crop where the cell reaches beyond that. A grid of the labels' own size returns them as they are.
    """
    for axis, cells in enumerate(grid, start=1):
        length = labels.shape[axis]
        side = -(-length // cells)
        centres = torch.arange(cells, device=labels.device) * side + side // 2
        labels = labels.index_select(axis, centres.clamp(max=length - 1))
    return labels


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
