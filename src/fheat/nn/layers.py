"""Layers of the networks: norms with a fast path on a GPU, and layers that change the grid."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fheat.nn.convolutions import PatchConv3d, PatchTransposed3d, SmallConv3d
from fheat.ops import kernels
from fheat.ops.dct import apply_matrix, constant, without_autocast

if TYPE_CHECKING:
    from fheat.ops.kernels.patch import PatchWeights


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

        channels_last = x.float().movedim(1, -1).contiguous()
        with kernels.on_device(x):
            return one_group_norm(channels_last, self.weight, self.bias, self.eps).movedim(-1, 1)


def one_group(channels: int) -> OneGroupNorm:
    """Return a norm over channels and grid together, with a scale and shift per channel."""
    return OneGroupNorm(channels)


_MOST_NORMED = 256
"""Most channels of an `EachChannelNorm` that runs by kernels: tiles of more have no test."""


class EachChannelNorm(nn.GroupNorm):
    """Normalise each channel over the grid: (x - mean) / sqrt(variance + eps) * weight + bias.

    Shapes: (N, C, X, Y, Z) -> the same. On a GPU the result has the type of autocast, to which the product that follows
    would round it, and channels last in memory.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each sample."""
        if x.ndim != 5 or not kernels.usable(x) or x.shape[2:].numel() == 1:  # which plain torch may refuse
            return super().forward(x)
        if self.num_channels > _MOST_NORMED or self.weight.dtype != torch.float32:
            return super().forward(x)
        from fheat.ops.kernels.channel_norm import channel_norm_of  # Triton takes a second to import

        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        with kernels.on_device(x):
            channels_last = x.float().movedim(1, -1).contiguous()
            return channel_norm_of(channels_last, self.weight, self.bias, self.eps, dtype).movedim(-1, 1)


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

    def forward(self, x: Tensor) -> Tensor:
        """Embed. By kernels, a norm and the GELU behind it are one pass."""
        if x.ndim != 5 or not kernels.usable(x):
            return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]
        layers, done = list(self), False
        for layer, behind in zip(layers, [*layers[1:], None], strict=True):
            if done:  # together with the norm before it
                done = False
                continue
            done = kernels.usable(x) and _are_norm_and_gelu(layer, behind)
            x = _activated(cast(OneGroupNorm, layer), x) if done else layer(x)
        return x


def _are_norm_and_gelu(layer: nn.Module, behind: nn.Module | None) -> bool:
    """Return whether a norm over channels and grid together has an exact GELU behind it, both without hooks."""
    return (
        behind is not None
        and untouched(layer, OneGroupNorm)
        and untouched(behind, nn.GELU)
        and cast(nn.GELU, behind).approximate == "none"
    )


def _activated(norm: OneGroupNorm, x: Tensor) -> Tensor:
    """Return GELU(norm(x)) by kernels."""
    from fheat.ops.kernels.gelu_norm import gelu_norm  # Triton takes a second to import

    with kernels.on_device(x):
        channels_last = x.float().movedim(1, -1).contiguous()
        return gelu_norm(channels_last, norm.weight, norm.bias, norm.eps).movedim(-1, 1)


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
    """2x2x2 stride-2 convolution, GN, squeeze-excitation: halves an even grid.

    Shapes: (N, in, X, Y, Z) -> (N, out, X / 2, Y / 2, Z / 2).
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            PatchConv3d(in_channels, out_channels, 2),
            one_group(out_channels),
            SqueezeExcitation(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Halve the grid."""
        if any(length % 2 for length in x.shape[2:]) or not _fusable(self, x, PatchConv3d):
            return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]
        from fheat.ops.kernels.patch import down  # Triton takes a second to import

        with kernels.on_device(x):
            channels_last = x.float().movedim(1, -1).contiguous()
            return down(channels_last, _patch_weights(self), _eps(self)).movedim(-1, 1)


class Up(nn.Sequential):
    """2x2x2 stride-2 transposed convolution, GN, squeeze-excitation: doubles the grid.

    Shapes: (N, in, X, Y, Z) -> (N, out, 2X, 2Y, 2Z).
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            PatchTransposed3d(in_channels, out_channels, 2, channels_last=True),
            one_group(out_channels),
            SqueezeExcitation(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Double the grid."""
        if not _fusable(self, x, PatchTransposed3d):
            return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]
        return self._fused(x, None)

    def added_to(self, skip: Tensor, x: Tensor) -> Tensor:
        """Return up(x) + skip; skip is (N, out, 2X, 2Y, 2Z). On a GPU the sum takes no pass of its own."""
        fits = untouched(self, Up) and _fusable(self, x, PatchTransposed3d)
        if not fits or skip.shape != (len(x), self[0].out_channels, *(2 * length for length in x.shape[2:])):
            return cast(Tensor, self(x)) + skip
        return self._fused(x, skip)

    def _fused(self, x: Tensor, skip: Tensor | None) -> Tensor:
        from fheat.ops.kernels.patch import up  # Triton takes a second to import

        with kernels.on_device(x):
            channels_last = x.float().movedim(1, -1).contiguous()
            beside = None if skip is None else skip.float().movedim(1, -1).contiguous()
            return up(channels_last, beside, _patch_weights(self), _eps(self)).movedim(-1, 1)


_WIDEST = 128
"""Most channels behind a convolution whose norm and squeeze-excitation run by kernels: tiles of more have no test."""


def _fusable(layers: nn.Sequential, x: Tensor, convolution: type[nn.Module]) -> bool:
    """Return whether kernels can run a convolution of patches, a norm and squeeze-excitation.

    They read the weights and call no submodule.
    """
    if x.ndim != 5 or not kernels.usable(x):
        return False
    if 8 * x.numel() >= 2**31 or len(layers) != 3:
        return False
    if not all(map(untouched, layers, (convolution, OneGroupNorm, SqueezeExcitation))):
        return False
    first, _, excitation = (cast(Any, layer) for layer in layers)
    return (
        all(untouched(linear, nn.Linear) and linear.bias is None for linear in excitation.children())
        and first.bias is not None
        and first.out_channels <= _WIDEST
        and first.kernel_size == first.stride == (2, 2, 2)
        and all(parameter.dtype == torch.float32 for parameter in layers.parameters())
    )


def _patch_weights(layers: nn.Sequential) -> "PatchWeights":
    from fheat.ops.kernels.patch import PatchWeights

    first, norm, excitation = (cast(Any, layer) for layer in layers)
    weights = excitation.squeeze.weight, excitation.excite.weight
    return PatchWeights(first.weight, first.bias, norm.weight, norm.bias, *weights)


def _eps(layers: nn.Sequential) -> float:
    return float(cast(OneGroupNorm, layers[1]).eps)


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
    """Return maps on another grid by trilinear interpolation; on their own grid they are returned as they are.

    Shapes: (N, C, X, Y, Z) -> (N, C, *grid). On a GPU it is one matrix product per axis, y = A x along that axis, in
    the precision of x and with channels last in memory.
    """
    if tuple(x.shape[2:]) == tuple(grid):
        return x
    if x.ndim != 5 or not kernels.usable(x):
        return F.interpolate(x, size=list(grid), mode="trilinear")
    y = x.movedim(1, -1).contiguous()
    with without_autocast(x):
        for axis in (-2, -3, -4):  # the last one first, while the others are still short
            matrix = constant(_interpolation, (y.shape[axis], grid[axis + 1]), x.device, x.dtype)
            y = apply_matrix(matrix, y, axis)
    return y.movedim(-1, 1)


def _interpolation(length: int, new: int) -> NDArray[np.float64]:
    """Return A, (new, length), of linear interpolation along an axis: row i reads the two cells around the point
    (i + 1/2) length / new - 1/2, or the outermost cell where that lies outside."""
    point = np.clip((np.arange(new) + 0.5) * length / new - 0.5, 0, length - 1)
    near: NDArray[np.float64] = np.maximum(1 - np.abs(point[:, None] - np.arange(length)), 0)
    return near


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module is exactly of a kind and without hooks, so that its weights say all that it does."""
    return type(module) is kind and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module must be called: something wants to know of it, or its `forward` is not its type's."""
    return "forward" in vars(module) or bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
