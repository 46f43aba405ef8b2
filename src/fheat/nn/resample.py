"""Layers that change the grid: overlapping stem, halving and doubling, padding to even lengths and cropping back."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.nn.layers import PatchConv3d, PatchTransposed3d, SmallConv3d, one_group


class Stem(nn.Sequential):
    """Overlapping patch embedding to a quarter of the grid.

    Three 3x3x3 convolutions without bias (stride 2 to C/4, stride 2 to C/2, stride 1 to C channels) with GN and GELU
    between them and a GN at the end.
    Shapes: (N, in, X, Y, Z) -> (N, C, ceil(X/4), ceil(Y/4), ceil(Z/4)).
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        quarter, half = channels // 4, channels // 2
        super().__init__(
            SmallConv3d(in_channels, quarter, stride=2),
            one_group(quarter),
            nn.GELU(),
            SmallConv3d(quarter, half, stride=2),
            one_group(half),
            nn.GELU(),
            SmallConv3d(half, channels),
            one_group(channels),
        )


class SqueezeExcitation(nn.Module):
    """Scale each channel by sigmoid(W2 relu(W1 mean(x))), W1: C -> C/16, without bias."""

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction, bias=False)
        self.excite = nn.Linear(channels // reduction, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rescale the channels of (N, C, X, Y, Z)."""
        weight: Tensor = self.excite(F.relu(self.squeeze(x.mean(dim=(2, 3, 4))))).sigmoid()
        return x * weight[:, :, None, None, None]


class Down(nn.Sequential):
    """2x2x2 stride-2 convolution, GN, squeeze-excitation: halves an even grid."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            PatchConv3d(in_channels, out_channels, 2),
            one_group(out_channels),
            SqueezeExcitation(out_channels),
        )


class Up(nn.Sequential):
    """2x2x2 stride-2 transposed convolution, GN, squeeze-excitation: doubles the grid."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            PatchTransposed3d(in_channels, out_channels, 2, channels_last=True),
            one_group(out_channels),
            SqueezeExcitation(out_channels),
        )


def pad_to_even(x: Tensor) -> Tensor:
    """Append one zero plane to every odd spatial axis of (N, C, X, Y, Z)."""
    extra = [length % 2 for length in reversed(x.shape[2:])]
    return F.pad(x, [planes for behind in extra for planes in (0, behind)]) if any(extra) else x


def crop_to(x: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the leading part of each spatial axis, which undoes `pad_to_even`."""
    return x[:, :, : grid[0], : grid[1], : grid[2]] if tuple(x.shape[2:]) != tuple(grid) else x
