"""The discriminator of SASSNet: tells from a distance map and its image whether the network has learned that scan."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.system import processes

SLOPE = 0.2
"""Slope of the activations below zero."""
DROPOUT = 0.5
"""Probability with which a channel is left out."""
SMALLEST_SIDE = 16
"""Smallest number of voxels along an axis that four halvings leave something of."""


class Discriminator(nn.Module):
    """Four 4x4x4 convolutions of stride 2 with leaky ReLUs, the mean over the grid, and a linear layer to two logits.

    Maps and image have a first convolution each, whose results are added. The layers have `width`, 2, 4 and 8 times
    `width` channels and no norm.

    Shapes: maps (B, M, X, Y, Z) and images (B, C, X, Y, Z) to (B, 2), at least 16 voxels along each axis.
    """

    def __init__(self, maps: int, channels: int, width: int = 64) -> None:
        super().__init__()
        self.of_maps, self.of_image = _halving(maps, width), _halving(channels, width)
        self.deeper = nn.ModuleList(_halving(times * width, 2 * times * width) for times in (1, 2, 4))
        self.decide = nn.Linear(8 * width, 2)

    def forward(self, maps: Tensor, images: Tensor, *, dropout: bool) -> Tensor:
        """Return logits; with `dropout` whole channels are left out before every convolution but the first ones."""
        x = F.leaky_relu(self.of_maps(maps) + self.of_image(images), SLOPE)
        for convolution in self.deeper:
            x = F.leaky_relu(convolution(drop_channels(x) if dropout else x), SLOPE)
        logits: Tensor = self.decide(x.mean(dim=(2, 3, 4)))
        return logits


def drop_channels(x: Tensor, probability: float = DROPOUT) -> Tensor:
    """Set channels of (B, C, X, Y, Z) to zero with a probability and scale the others up; with 0 nothing changes.

    Drawn for the batch of all processes together, unlike `nn.Dropout3d`.
    """
    group = processes.current()
    drawn = torch.rand(group.size * len(x), x.shape[1], 1, 1, 1, device=x.device)
    return x * ((group.rows(drawn) >= probability).to(x.dtype) / (1 - probability))


def _halving(in_channels: int, out_channels: int) -> nn.Conv3d:
    return nn.Conv3d(in_channels, out_channels, 4, stride=2, padding=1)
