"""The blocks of SegFormer3D: patch embedding, attention with few keys, feed-forward with a convolution.

Facts: SegFormer3D (Perera, Navard, Yilmaz, 2024), OSUPCVLab/SegFormer3D; written here from its shapes. Deliberate
differences: maps keep their grid, (N, C, X, Y, Z), so that any grid works where the released code needs a cube; linear
layers are 1x1x1 convolutions.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d, Pointwise3d
from fheat.nn.fheat import FHEAT
from fheat.nn.layers import ChannelNorm
from fheat.ops.dct import compute_dtype, without_autocast
from fheat.ops.heat import FractionalHeat
from fheat.ops.mixing_block import MixingBlock


class PatchEmbedding(nn.Sequential):
    """Overlapping convolution and `ChannelNorm`. Shapes: (N, in, X, Y, Z) -> (N, C, ceil(X / stride), ...)."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int) -> None:
        super().__init__(
            convolution(in_channels, channels, kernel, stride=stride, padding=kernel // 2), ChannelNorm(channels)
        )


class ReducedAttention(nn.Module):
    """softmax(q k^T / sqrt(d)) v with keys and values on a grid that is coarser by r along each axis.

    The coarser grid is a convolution with kernel = stride = r and a `ChannelNorm`; with r = 1 it is the grid itself.
    The products are computed in float32 under autocast too. Shapes: (N, C, X, Y, Z) -> the same.
    """

    def __init__(self, channels: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = linear(channels, channels)
        self.reduce: nn.Module = nn.Identity()
        if reduction > 1:
            coarser = convolution(channels, channels, reduction, stride=reduction)
            self.reduce = nn.Sequential(coarser, ChannelNorm(channels))
        self.key_value = linear(channels, 2 * channels)
        self.out = linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Mix all voxels."""
        query = self._by_head(self.query(x))
        key, value = map(self._by_head, self.key_value(self.reduce(x)).chunk(2, dim=1))
        with without_autocast(x):
            weight = (query.transpose(-2, -1) @ key / math.sqrt(query.shape[2])).softmax(dim=-1)
            mixed = (value @ weight.transpose(-2, -1)).reshape(x.shape)
        out: Tensor = self.out(mixed)
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        """Return (N, C, X, Y, Z) as (N, heads, C / heads, XYZ) in the precision of the products."""
        return x.reshape(len(x), self.heads, x.shape[1] // self.heads, -1).to(compute_dtype(x))


class MixFFN(nn.Sequential):
    """1x1x1 (C -> 4C) -> depthwise 3x3x3 -> batch norm -> GELU -> 1x1x1 (4C -> C)."""

    def __init__(self, channels: int, expansion: int = 4) -> None:
        hidden = expansion * channels
        super().__init__(
            linear(channels, hidden),
            depthwise(hidden),
            nn.BatchNorm3d(hidden),
            nn.GELU(),
            linear(hidden, channels),
        )


class SegFormerBlock(MixingBlock):
    """x + mixer(norm(x)), then x + MixFFN(norm(x)). Shapes: (N, C, X, Y, Z) -> the same."""

    branches: ClassVar = {"mixer": ("mixer_norm", "mixer"), "ffn": ("ffn_norm", "ffn")}
    own_mixer = "mixer"
    mixer: nn.Module | None
    mixer_norm: nn.Module | None
    ffn: nn.Module | None
    ffn_norm: nn.Module | None

    def __init__(self, channels: int, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = ChannelNorm(channels)
        self.mixer = mixer
        self.ffn_norm = ChannelNorm(channels)
        self.ffn = MixFFN(channels)

    def forward(self, x: Tensor, *shared: nn.Module) -> Tensor:
        """Apply the block; `shared` are modules that the stage lends to the mixer of each of its blocks."""
        if self.mixer is not None and self.mixer_norm is not None:
            x = x + self.mixer(self.mixer_norm(x), *shared)
        if self.ffn is not None and self.ffn_norm is not None:
            x = x + self.ffn(self.ffn_norm(x))
        return x


class SegFormerStage(nn.Module):
    """Patch embedding, one block per mixer, and a `ChannelNorm`.

    With a gate the mixers are `FHEAT` operators that share it; without one they take nothing but the map.
    Shapes: (N, in, X, Y, Z) -> (N, C, ceil(X / stride), ...).
    """

    def __init__(
        self, embedding: PatchEmbedding, mixers: Sequence[nn.Module], channels: int, gate: FractionalHeat | None = None
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.gate = gate
        self.blocks = nn.ModuleList(SegFormerBlock(channels, mixer) for mixer in mixers)
        self.norm = ChannelNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the stage."""
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x) if self.gate is None else block(x, self.gate)
        out: Tensor = self.norm(x)
        return out


class Projection(nn.Sequential):
    """1x1x1 convolution to the width of the decoder and `ChannelNorm`: a stage of the decoder without a gate."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(linear(in_channels, channels), ChannelNorm(channels))


class GatedProjection(nn.Module):
    """z + FHEAT(z) with z the `Projection` of x: a stage of the decoder with an additive gate.

    `attend` also returns the attention map mean_c |FHEAT(z)_c|, detached, (N, 1, X, Y, Z).
    """

    def __init__(self, in_channels: int, channels: int, gate: FractionalHeat) -> None:
        super().__init__()
        self.project = Projection(in_channels, channels)
        self.gate = gate
        self.fheat = FHEAT(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the stage."""
        z = self.project(x)
        out: Tensor = z + self.fheat(z, self.gate)
        return out

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the attention map."""
        z = self.project(x)
        y = self.fheat(z, self.gate)
        return z + y, y.detach().abs().mean(dim=1, keepdim=True)


def linear(in_channels: int, out_channels: int) -> nn.Conv3d:
    """Return a linear layer over channels, from a truncated normal distribution of deviation 0.02, bias 0."""
    layer = Pointwise3d(in_channels, out_channels)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def convolution(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Conv3d:
    """Return a convolution with the weights of `_begun`."""
    return _begun(nn.Conv3d(in_channels, out_channels, kernel, stride=stride, padding=padding))


def depthwise(channels: int) -> nn.Conv3d:
    """Return a depthwise 3x3x3 convolution that keeps the grid, with the weights of `_begun`."""
    return _begun(DepthwiseConv3d(channels))


def _begun(layer: nn.Conv3d) -> nn.Conv3d:
    """Draw the weights from a normal distribution of variance 2 / (k^3 out / groups), set the bias to 0."""
    nn.init.normal_(layer.weight, std=math.sqrt(2 * layer.groups / (layer.kernel_size[0] ** 3 * layer.out_channels)))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
