"""The smallest U: one level above a bottom that is alone on its level, a concatenated skip, a gate in every block."""

import torch
from torch import nn

from fheat import FractionalHeat


class Layers(nn.Sequential):
    """A block: a convolution and a gate in two dimensions."""

    def __init__(self, channels, out_channels):
        super().__init__(nn.Conv2d(channels, out_channels, 1), FractionalHeat(dims=2))


class TinyU(nn.Module):
    """Maps (N, 1, X, Y) to (N, 2, X, Y) for even lengths; the bottom has two blocks, the others have one."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 1)
        self.enc = nn.Sequential(Layers(4, 4))
        self.down = nn.Conv2d(4, 6, 2, stride=2)
        self.bottom = nn.Sequential(Layers(6, 6), Layers(6, 6))
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.dec = nn.Sequential(Layers(8, 4))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        skip = self.enc(self.stem(x))
        return self.head(self.dec(torch.cat([self.up(self.bottom(self.down(skip))), skip], dim=1)))
