"""Convolutions whose kernel is as long as their stride: on a GPU one matrix product over patches that do not overlap.

Parameters and results are those of `nn.Conv3d` and `nn.ConvTranspose3d`, which run everywhere else; libraries of
convolutions spend most of their time here on layouts and on channels they pad.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from fheat.ops import kernels


class PatchConv3d(nn.Conv3d):
    """Each patch of `side` voxels per axis to one: y = W vec(patch) + b.

    Shapes: (N, in, X, Y, Z) -> (N, out, X // side, ...), lying channels last where it is a product.
    """

    def __init__(self, in_channels: int, out_channels: int, side: int) -> None:
        super().__init__(in_channels, out_channels, side, stride=side)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        side = self.stride[0]
        if x.ndim != 5 or not kernels.usable(x) or any(length % side for length in x.shape[2:]):
            return super().forward(x)
        samples, channels, *grid = x.shape
        a, b, c = (length // side for length in grid)
        patches = x.reshape(samples, channels, a, side, b, side, c, side).permute(0, 2, 4, 6, 1, 3, 5, 7)
        y = F.linear(patches.reshape(samples, a, b, c, -1), self.weight.flatten(1), self.bias)
        return y.permute(0, 4, 1, 2, 3)


class PatchTransposed3d(nn.ConvTranspose3d):
    """Each voxel to a patch of `side` voxels per axis: vec(patch) = W^T x + b.

    Shapes: (N, in, X, Y, Z) -> (N, out, side X, side Y, side Z), lying channels last if asked, where it is a product.
    """

    def __init__(self, in_channels: int, out_channels: int, side: int, *, channels_last: bool = False) -> None:
        super().__init__(in_channels, out_channels, side, stride=side)
        self.channels_last = channels_last

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or output_size is not None or not kernels.usable(x):
            return super().forward(x, output_size)
        side, channels = self.stride[0], self.out_channels
        samples, _, a, b, c = x.shape
        bias = None if self.bias is None else self.bias.repeat_interleave(side**3)
        patches = F.linear(x.permute(0, 2, 3, 4, 1), self.weight.flatten(1).t(), bias)
        patches = patches.view(samples, a, b, c, channels, side, side, side)
        grid = side * a, side * b, side * c
        if self.channels_last:
            return patches.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(samples, *grid, channels).permute(0, 4, 1, 2, 3)
        return patches.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(samples, channels, *grid)
