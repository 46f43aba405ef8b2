"""An auxiliary head that predicts one number or more per voxel from the features before the segmentation head."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.methods.feature_grid import example_features
from fheat.networks.base import SegmentationNetwork

Convolution = nn.Conv3d | nn.ConvTranspose3d


class DenseHead(nn.Module):
    """Maps features (B, C, x, y, z) to (B, channels, X, Y, Z) with the geometry of a network's segmentation head.

    The head is the last convolution into which the features go as they are and which has as many channels as the
    network has classes. A copy of it with fresh weights and `channels` outputs is made: same kind, kernel and stride.
    In a network without such a convolution it is one of 1x1x1. A result that is coarser than the input is then
    interpolated trilinearly, and a larger one, of padded features, is cut to the leading part.

    `in_channels` is the number of channels of the features.
    """

    def __init__(self, model: SegmentationNetwork, channels: int) -> None:
        super().__init__()
        head, features = _head_and_features(model)
        self.in_channels = features.shape[1]
        if head is None:
            convolution: Convolution = nn.Conv3d(self.in_channels, channels, 1)
        else:
            convolution = _with_outputs(head, channels)
        self.convolution = convolution.to(features.device, features.dtype)

    def forward(self, features: Tensor, size: Sequence[int]) -> Tensor:
        """Return the prediction on a grid of `size`, that of the network's input."""
        found: Tensor = self.convolution(features)
        if any(have < want for have, want in zip(found.shape[2:], size, strict=True)):
            return F.interpolate(found, size=tuple(size), mode="trilinear")
        return found[:, :, : size[0], : size[1], : size[2]]


def _head_and_features(model: SegmentationNetwork) -> tuple[Convolution | None, Tensor]:
    """Return the network's segmentation head, if one can be found, and the features of an example that enter it."""
    inputs: list[tuple[Convolution, Tensor]] = []

    def note(module: Convolution, arguments: tuple[Any, ...]) -> None:
        inputs.append((module, arguments[0]))

    convolutions = [module for module in model.modules() if isinstance(module, Convolution)]
    handles = [module.register_forward_pre_hook(note) for module in convolutions]
    try:
        seen = example_features(model)
    finally:
        for handle in handles:
            handle.remove()
    heads = [module for module, given in inputs if given is seen.penultimate and module.groups == 1]
    able = [module for module in heads if module.out_channels == seen.logits.shape[1]]
    return (able[-1] if able else None), seen.penultimate


def _with_outputs(convolution: Convolution, channels: int) -> Convolution:
    """Return a copy on the CPU, so that all devices start alike, with fresh weights and another number of outputs."""
    copy = deepcopy(convolution).cpu()
    shape = list(copy.weight.shape)
    shape[1 if copy.transposed else 0] = channels
    copy.out_channels = channels
    copy.weight = nn.Parameter(copy.weight.new_empty(shape))
    copy.bias = None if copy.bias is None else nn.Parameter(copy.bias.new_empty(channels))
    copy.reset_parameters()
    return copy
