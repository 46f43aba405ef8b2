"""Convolutions with a fast path on a GPU.

Parameters and results of the fast paths are those of `nn.Conv3d` and `nn.ConvTranspose3d`, which run everywhere else.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.ops import kernels

_FEW_VOXELS = 4096
"""Largest grid on which the kernel of a grouped convolution was made to be fast."""


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

        channels_last = x.float().movedim(1, -1).contiguous()
        with kernels.on_device(x):
            return conv3(channels_last, self.weight.float(), self.stride[0]).movedim(-1, 1)


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
        return y.movedim(-1, 1)


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
        if self._spreads(x):
            from fheat.ops.kernels.spread import spread  # Triton takes a second to import

            with kernels.on_device(x):
                return spread(x.float().movedim(1, -1).contiguous(), self.weight, cast(Tensor, self.bias))
        bias = None if self.bias is None else self.bias.repeat_interleave(side**3)
        patches = F.linear(x.movedim(1, -1), self.weight.flatten(1).t(), bias)
        patches = patches.view(samples, a, b, c, channels, side, side, side)
        grid = side * a, side * b, side * c
        if self.channels_last:
            return patches.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(samples, *grid, channels).movedim(-1, 1)
        return patches.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(samples, channels, *grid)

    def _spreads(self, x: Tensor) -> bool:
        """Return whether a kernel can put the patches of a product in their places, with channels first."""
        return (
            not self.channels_last
            and self.stride[0] in (2, 4, 8)
            and self.bias is not None
            and self.weight.dtype == torch.float32
            and x[:, 0].numel() * self.weight[0].numel() < 2**31
            and len(x) * self.out_channels < 65_536
        )


class Pointwise3d(nn.Conv3d):
    """1x1x1 convolution with stride 1 or 2: y = W x + b in every voxel, or in every second one along each axis.

    Shapes: (N, in, X, Y, Z) -> (N, out, ceil(X / stride), ...). On a GPU it is one matrix product, with channels last
    in memory. From one channel, or to few, kernels pass over memory once; the result of the former is float32
    under autocast too.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, *, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 1, stride=stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or not kernels.usable(x):
            return super().forward(x)
        if self._in_one_pass(x):
            return self._passed(x)
        step = self.stride[0]
        return pointwise(x if step == 1 else x[:, :, ::step, ::step, ::step], self.weight, self.bias)

    def _in_one_pass(self, x: Tensor) -> bool:
        """Return whether a kernel can run the convolution without tensor cores."""
        return (
            ((self.in_channels == 1 and not x.requires_grad) or self.out_channels <= 4)
            and max(self.in_channels, self.out_channels) <= 128
            and self.stride[0] == 1
            and self.bias is not None
            and self.weight.dtype == torch.float32
            and x[:, 0].numel() * max(self.in_channels, self.out_channels) < 2**31
        )

    def _passed(self, x: Tensor) -> Tensor:
        from fheat.ops.kernels.pointwise import narrowed, outer  # Triton takes a second to import

        weight, bias, kind = self.weight.flatten(1), cast(Tensor, self.bias), x.device.type
        with kernels.on_device(x):
            channels_last = x.float().movedim(1, -1).contiguous()
            if self.in_channels == 1 and not x.requires_grad:
                return outer(channels_last, weight.flatten(), bias).movedim(-1, 1)
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
            return narrowed(channels_last, weight, bias, dtype).movedim(-1, 1)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the 1x1x1 convolution of (N, in, X, Y, Z) with weights (out, in, 1, 1, 1)."""
    if x.ndim != 5 or not kernels.usable(x):
        return F.conv3d(x, weight, bias)
    return F.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)


class DepthwiseConv3d(nn.Conv3d):
    """Depthwise 3x3x3 convolution with padding 1 and stride 1 or 2, by a fused kernel on a GPU.

    Shapes: (N, C, X, Y, Z) -> (N, C, ceil(X / stride), ...). The kernel returns float32 under autocast too, with
    channels last in memory.
    """

    def __init__(self, channels: int, stride: int = 1, *, bias: bool = True) -> None:
        super().__init__(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or not kernels.usable(x):
            return super().forward(x)
        from fheat.ops.kernels.depthwise import depthwise  # Triton takes a second to import
        from fheat.ops.kernels.strided import halved

        convolve = halved if self.stride[0] == 2 else depthwise
        with kernels.on_device(x):
            channels_last = x.float().movedim(1, -1).contiguous()
            return convolve(channels_last, self.weight, self.bias).movedim(-1, 1)


class DoublingDepthwise3d(nn.ConvTranspose3d):
    """Depthwise transposed 3x3x3 convolution with padding 1 and stride 2, by a fused kernel on a GPU.

    Shapes: (N, C, X, Y, Z) -> (N, C, 2X - 1, 2Y - 1, 2Z - 1). The kernel returns float32 under autocast too.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, stride=2, padding=1, groups=channels)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or output_size is not None or not kernels.usable(x) or 8 * x.numel() >= 2**31:
            return super().forward(x, output_size)
        return self.doubled(x, torch.float32)

    def doubled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Convolve by kernels, with a result of a given type."""
        from fheat.ops.kernels.strided import doubled  # Triton takes a second to import

        with kernels.on_device(x):
            channels_last = x.float().movedim(1, -1).contiguous()
            return doubled(channels_last, self.weight, self.bias, dtype).movedim(-1, 1)


class DoublingPointwise3d(nn.ConvTranspose3d):
    """1x1x1 transposed convolution with stride 2: W^T x + b in every second voxel along each axis, b in the others.

    Shapes: (N, in, X, Y, Z) -> (N, out, 2X - 1, 2Y - 1, 2Z - 1). On a GPU it is one matrix product.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 1, stride=2)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or output_size is not None or not kernels.usable(x) or self.bias is None:
            return super().forward(x, output_size)
        y = _spread(pointwise(x, self.weight.transpose(0, 1)))
        return y + self.bias.to(y.dtype)[:, None, None, None]


class GroupedConv3d(nn.Conv3d):
    """Convolution of odd side with one group per input channel, padded to keep the grid, without bias.

    Shapes: (N, C, X, Y, Z) -> (N, m C, X, Y, Z). On a GPU grids of up to a few thousand voxels run by a fused kernel,
    which returns float32 under autocast too, with channels last in memory.
    """

    def __init__(self, in_channels: int, out_channels: int, side: int) -> None:
        if side % 2 == 0:
            raise ValueError(f"side={side} is even: use 1, 3, 5, ..., which keep the grid")
        super().__init__(in_channels, out_channels, side, padding=side // 2, groups=in_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or not kernels.usable(x) or x.shape[2:].numel() > _FEW_VOXELS:
            return super().forward(x)
        from fheat.ops.kernels.grouped import grouped_conv  # Triton takes a second to import

        with kernels.on_device(x):
            channels_last = x.movedim(1, -1).contiguous()
            return grouped_conv(channels_last, self.weight.float()).movedim(-1, 1)


class DepthwiseTransposed3d(nn.ConvTranspose3d):
    """Depthwise convolution that turns each voxel into a patch of `side` voxels per axis: patch = w x + b.

    Shapes: (N, C, X, Y, Z) -> (N, C, side X, side Y, side Z). On a GPU it is one broadcast product in float32, under
    autocast too, with channels last in memory.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(channels, channels, side, stride=side, groups=channels)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Convolve."""
        if x.ndim != 5 or output_size is not None or not kernels.usable(x) or self.bias is None:
            return super().forward(x, output_size)
        side = self.stride[0]
        samples, channels, a, b, c = x.shape
        voxels = x.movedim(1, -1).reshape(samples, a, 1, b, 1, c, 1, channels)
        weight = self.weight.permute(1, 2, 3, 4, 0).reshape(side, 1, side, 1, side, channels)
        patches = torch.addcmul(self.bias, voxels.float(), weight.float())
        return patches.reshape(samples, side * a, side * b, side * c, channels).movedim(-1, 1)


def _spread(x: Tensor) -> Tensor:
    """Return (N, C, 2X - 1, 2Y - 1, 2Z - 1): x in every second voxel along each axis, zeros between, channels last."""
    samples, channels, *grid = x.shape
    wide = x.new_zeros(samples, *(2 * length - 1 for length in grid), channels)
    wide[:, ::2, ::2, ::2] = x.movedim(1, -1)
    return wide.movedim(-1, 1)
