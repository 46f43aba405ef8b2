"""Layers of the networks: norm and convolutions with a fast path on a GPU, and layers that change the grid.

Parameters and results of the fast paths are those of `nn.GroupNorm`, `nn.Conv3d` and `nn.ConvTranspose3d`, which run
everywhere else.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.ops import kernels

_FEW_VOXELS = 4096
"""Largest grid on which the kernel of a grouped convolution was made to be fast."""


class OneGroupNorm(nn.GroupNorm):
    """Normalise over channels and grid together, with a scale and shift per channel.

    Shapes: (N, C, ...) -> the same.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each sample."""
        if x.ndim != 5 or not kernels.usable(x):
            return super().forward(x)
        from fheat.ops.kernels.norm import one_group_norm  # Triton takes a second to import

        channels_last = x.float().permute(0, 2, 3, 4, 1).contiguous()
        with kernels.on_device(x):
            return one_group_norm(channels_last, self.weight, self.bias, self.eps).permute(0, 4, 1, 2, 3)


def one_group(channels: int) -> OneGroupNorm:
    """Return a norm over channels and grid together, with a scale and shift per channel."""
    return OneGroupNorm(channels)


class ChannelNorm(nn.Module):
    """Normalise over the channels of each voxel, with a scale and shift per channel: `nn.LayerNorm` on maps.

    Shapes: (N, C, X, Y, Z) -> the same, with channels last in memory.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each voxel."""
        normed: Tensor = self.norm(x.movedim(1, -1))
        return normed.movedim(-1, 1)


class SmallConv3d(nn.Conv3d):
    """3x3x3 convolution with padding 1, stride 1 or 2 and no bias, by a fused kernel on a GPU.

    Shapes: (N, in, X, Y, Z) -> (N, out, ceil(X / stride), ...). The kernel returns float32 under autocast too, with
    channels last in memory. Parameters are those of `nn.Conv3d`.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        if stride not in (1, 2):
            raise ValueError(f"stride={stride} is unknown: use 1 or 2")
        super().__init__(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or not kernels.usable(x) or x.numel() * self.out_channels >= 2**31 * self.in_channels:
            return super().forward(x)
        from fheat.ops.kernels.conv import conv3  # Triton takes a second to import

        channels_last = x.float().permute(0, 2, 3, 4, 1).contiguous()
        with kernels.on_device(x):
            return conv3(channels_last, self.weight.float(), self.stride[0]).permute(0, 4, 1, 2, 3)


class PatchConv3d(nn.Conv3d):
    """Convolution that turns each patch of `side` voxels per axis into one voxel: y = W vec(patch) + b.

    Shapes: (N, in, X, Y, Z) -> (N, out, X // side, ...). On a GPU it is one matrix product, with channels last in
    memory.
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
    """Convolution that turns each voxel into a patch of `side` voxels per axis: vec(patch) = W^T x + b.

    Shapes: (N, in, X, Y, Z) -> (N, out, side X, side Y, side Z). On a GPU it is one matrix product, with channels last
    in memory if `channels_last` is set.
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


class Pointwise3d(nn.Conv3d):
    """1x1x1 convolution without bias: y = W x in every voxel.

    Shapes: (N, in, X, Y, Z) -> (N, out, X, Y, Z). On a GPU it is one matrix product, with channels last in memory.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return pointwise(x, self.weight)


def pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """Return the 1x1x1 convolution of (N, in, X, Y, Z) with weights (out, in, 1, 1, 1)."""
    if x.ndim != 5 or not kernels.usable(x):
        return F.conv3d(x, weight)
    return F.linear(x.permute(0, 2, 3, 4, 1), weight.flatten(1)).permute(0, 4, 1, 2, 3)


class ResidualDepthwise3d(nn.Conv3d):
    """x + DWConv3(x): a depthwise 3x3x3 convolution without bias added to its input, by a fused kernel on a GPU.

    Shapes: (N, C, X, Y, Z) -> the same. Identity case: weights of zero.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and add."""
        if x.ndim != 5 or not kernels.usable(x):
            return x + super().forward(x)
        from fheat.ops.kernels.depthwise import residual_depthwise, weight_tables  # Triton takes a second to import

        channels_last = x.float().permute(0, 2, 3, 4, 1).contiguous()
        with kernels.on_device(x):
            (table,) = weight_tables([self.weight])
            return residual_depthwise(channels_last, self.weight, table).permute(0, 4, 1, 2, 3)


class GroupedConv3d(nn.Conv3d):
    """Convolution of odd side with one group per input channel, padded to keep the grid, without bias.

    Shapes: (N, C, X, Y, Z) -> (N, m C, X, Y, Z). On a GPU grids of a few hundred voxels run by a fused kernel, which
    returns float32 under autocast too, with channels last in memory.
    """

    def __init__(self, in_channels: int, out_channels: int, side: int) -> None:
        super().__init__(in_channels, out_channels, side, padding=side // 2, groups=in_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or not kernels.usable(x) or x.shape[2:].numel() > _FEW_VOXELS:
            return super().forward(x)
        from fheat.ops.kernels.grouped import grouped_conv  # Triton takes a second to import

        with kernels.on_device(x):
            channels_last = x.permute(0, 2, 3, 4, 1).contiguous()
            return grouped_conv(channels_last, self.weight.float()).permute(0, 4, 1, 2, 3)


class DepthwiseTransposed3d(nn.ConvTranspose3d):
    """Depthwise convolution that turns each voxel into a patch of `side` voxels per axis: patch = w x + b.

    Shapes: (N, C, X, Y, Z) -> (N, C, side X, side Y, side Z). On a GPU it is one broadcast product, with channels last
    in memory.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(channels, channels, side, stride=side, groups=channels)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or output_size is not None or not kernels.usable(x) or self.bias is None:
            return super().forward(x, output_size)
        side = self.stride[0]
        samples, channels, a, b, c = x.shape
        voxels = x.permute(0, 2, 3, 4, 1).reshape(samples, a, 1, b, 1, c, 1, channels)
        weight = self.weight.permute(1, 2, 3, 4, 0).reshape(side, 1, side, 1, side, channels)
        patches = torch.addcmul(self.bias, voxels.float(), weight.float())
        return patches.reshape(samples, side * a, side * b, side * c, channels).permute(0, 4, 1, 2, 3)


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


def padded_grid(grid: Sequence[int], multiple: int) -> tuple[int, ...]:
    """Return the least multiples that hold a grid; two on the first axis where each axis would have one.

    A network that divides the grid by `multiple` would reach a single voxel there, over which no norm can be taken.
    """
    lengths = [-(-length // multiple) * multiple for length in grid]
    if all(length == multiple for length in lengths):
        lengths[0] += multiple
    return tuple(lengths)


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Append zero planes to (N, C, X, Y, Z) up to `padded_grid`."""
    grid = padded_grid(x.shape[2:], multiple)
    planes = [more - length for more, length in zip(reversed(grid), reversed(x.shape[2:]), strict=True)]
    return F.pad(x, [count for behind in planes for count in (0, behind)]) if any(planes) else x


def crop_to(x: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the leading part of each spatial axis, which undoes `pad_to_even`."""
    return x[:, :, : grid[0], : grid[1], : grid[2]] if tuple(x.shape[2:]) != tuple(grid) else x


def resized(x: Tensor, grid: Sequence[int]) -> Tensor:
    """Return maps on another grid by trilinear interpolation; on their own grid they are returned as they are."""
    return x if tuple(x.shape[2:]) == tuple(grid) else F.interpolate(x, size=list(grid), mode="trilinear")
