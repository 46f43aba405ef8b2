"""Inverted-bottleneck convolution blocks of the large networks, and their strided forms."""

import torch.nn.functional as F
from torch import Tensor, nn


def _body(depthwise: nn.Module, channels: int, out_channels: int, expansion: int) -> nn.Sequential:
    return nn.Sequential(
        depthwise,
        nn.GroupNorm(channels, channels),
        nn.Conv3d(channels, expansion * channels, 1),
        nn.GELU(),
        nn.Conv3d(expansion * channels, out_channels, 1),
    )


class ConvBlock(nn.Module):
    """x + body(x): depthwise 3x3x3, one norm group per channel, 1x1x1 widening, GELU, 1x1x1 back."""

    def __init__(self, channels: int, expansion: int = 2) -> None:
        super().__init__()
        depthwise = nn.Conv3d(channels, channels, 3, padding=1, groups=channels)
        self.body = _body(depthwise, channels, channels, expansion)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (N, C, X, Y, Z)."""
        out: Tensor = x + self.body(x)
        return out


class ConvDown(nn.Module):
    """The conv block with stride 2 in its depthwise convolution, plus a strided 1x1x1 shortcut: halves an even grid."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int = 2) -> None:
        super().__init__()
        depthwise = nn.Conv3d(in_channels, in_channels, 3, stride=2, padding=1, groups=in_channels)
        self.body = _body(depthwise, in_channels, out_channels, expansion)
        self.shortcut = nn.Conv3d(in_channels, out_channels, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, X, Y, Z) -> (N, C_out, X/2, Y/2, Z/2)."""
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


class ConvUp(nn.Module):
    """The transposed twin of `ConvDown`; both paths give 2n - 1 points and are padded by one plane in front."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int = 2) -> None:
        super().__init__()
        depthwise = nn.ConvTranspose3d(in_channels, in_channels, 3, stride=2, padding=1, groups=in_channels)
        self.body = _body(depthwise, in_channels, out_channels, expansion)
        self.shortcut = nn.ConvTranspose3d(in_channels, out_channels, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, X, Y, Z) -> (N, C_out, 2X, 2Y, 2Z)."""
        front = (1, 0, 1, 0, 1, 0)
        return F.pad(self.body(x), front) + F.pad(self.shortcut(x), front)
