"""The block of Light-UNETR: dimension-reductive attention with gated channel mixing.

Paper and source: Light-UNETR with contextual synergic enhancement, CUHK-AIM-Group/Light-UNETR (MIT), written here from
its shapes. Deliberate differences: a grid that the sampling stride does not divide is cropped back instead of failing;
the attention map stays on its own token grid instead of being resized to a fixed 112x112x80.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fheat.nn.convolutions import (
    DepthwiseConv3d,
    DepthwiseTransposed3d,
    GroupedConv3d,
    Pointwise3d,
    pointwise,
)
from fheat.nn.layers import crop_to, one_group, untouched
from fheat.ops import kernels
from fheat.ops.dct import autocasts, without_autocast
from fheat.ops.kernels.launch import WIDEST, operand_type

_MOST_TOKENS, _MOST_CHANNELS = 256, 96
"""Largest numbers that kernels take: those of Light-UNETR on its usual patch. More would not fit many GPUs."""
_WIDEST_IN_FLOAT32 = 64
"""Most channels that one program mixes in float32: with 96, eight calls took 123 ms in a pass of `light_unetr_l`
that takes 130 ms as a whole without kernels, see benchmarks/LOG.md."""


class LocalBranch(nn.Sequential):
    """1x1x1 to half the channels, batch norm, GELU, grouped convolution of odd side back to all, GELU, without bias.

    Shapes: (N, C, X, Y, Z) -> the same.
    """

    def __init__(self, channels: int, side: int) -> None:
        half = channels // 2
        super().__init__(
            Pointwise3d(channels, half, bias=False),
            nn.BatchNorm3d(half),
            nn.GELU(),
            GroupedConv3d(half, channels, side),
            nn.GELU(),
        )

    def fusable(self) -> bool:
        """Return whether kernels compute what the layers would: they are as built, and the norm is in training."""
        kinds = Pointwise3d, nn.BatchNorm3d, nn.GELU, GroupedConv3d, nn.GELU
        if not untouched(self, LocalBranch) or not all(map(untouched, self, kinds)):
            return False
        _, norm, first, _, second = (cast(Any, layer) for layer in self)
        return bool(
            first.approximate == second.approximate == "none"
            and norm.training
            and norm.affine
            and norm.track_running_stats
            and norm.momentum is not None
        )

    def behind_product(self, half: Tensor, grid: torch.Size) -> Tensor:
        """Do all but the first layer, by kernels in float32: tokens (N X Y Z, C / 2) of a grid (N, X, Y, Z) to
        (N X Y Z, C), in their order."""
        from fheat.ops.kernels.batch_norm import norm_gelu  # Triton takes a second to import
        from fheat.ops.kernels.grouped import grouped_conv_gelu

        _, norm, _, widen, _ = self
        wide = grouped_conv_gelu(norm_gelu(half, norm).view(*grid, -1), widen.weight)  # type: ignore[arg-type]
        return wide.view(len(half), -1)


def attend(x: Tensor, qkv: nn.Module, heads: int, want_map: bool) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q k^T) v without a scale, and the mean attention that each token receives; None if not wanted.

    `qkv` makes q, k and v of each head, one head after the other. Everything is computed in float32 under autocast too:
    activations reach thousands, and a product of two of them is rounded by thousands in bfloat16.

    Shapes: (N, C, X, Y, Z) -> the same, and (N, 1, X, Y, Z).
    """
    batch, _, *grid = x.shape
    with without_autocast(x):
        query, key, value = qkv(x).reshape(batch, heads, -1, x[0, 0].numel()).chunk(3, dim=2)
        weight = (query.transpose(-2, -1) @ key).softmax(dim=-1)
        attended = (value @ weight.transpose(-2, -1)).reshape(batch, -1, *grid)
    received = weight.detach().mean(dim=(1, 2)).reshape(batch, 1, *grid) if want_map else None
    return attended, received


class LightAttention(nn.Module):
    """Attention on one third of the channels, convolutions on the other two, all on a grid sampled with stride r.

    First third: 1x1x1 to q, k, v, then `attend`. The other two: a `LocalBranch` of side 3 and one of side 5. Then a
    depthwise transposed convolution (kernel = stride = r), GN, 1x1x1.

    Shapes: (N, C, X, Y, Z) -> the same, and the mean attention that each token receives, (N, 1, X/r, Y/r, Z/r); None
    where no map is wanted.
    """

    def __init__(self, channels: int, stride: int, heads: int) -> None:
        super().__init__()
        third = channels // 3
        if channels % 6 or third % heads:
            raise ValueError(
                f"channels={channels} cannot be split: need a multiple of 6 whose third divides by heads={heads}"
            )
        self.heads = heads
        self.stride = stride
        self.qkv = Pointwise3d(third, 3 * third, bias=False)
        self.fine = LocalBranch(third, 3)
        self.coarse = LocalBranch(third, 5)
        self.recover = nn.Sequential(
            DepthwiseTransposed3d(channels, stride),
            one_group(channels),
            Pointwise3d(channels, channels, bias=False),
        )

    def forward(self, x: Tensor, want_map: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return the mixed features and the attention map."""
        mixed, attention = self._mix_fused(x, want_map) if self._fusable(x) else self._mix(x, want_map)
        return crop_to(self.recover(mixed), x.shape[2:]), attention

    def _mix(self, x: Tensor, want_map: bool) -> tuple[Tensor, Tensor | None]:
        sampled = x[:, :, :: self.stride, :: self.stride, :: self.stride]
        attended, fine, coarse = sampled.chunk(3, dim=1)
        attended, attention = attend(attended, self.qkv, self.heads, want_map)
        return torch.cat([attended, self.fine(fine), self.coarse(coarse)], dim=1), attention

    def _fusable(self, x: Tensor) -> bool:
        """Return whether kernels can mix the tokens: they read the weights and call no submodule."""
        if not kernels.usable(x):
            return False
        tokens = torch.Size(-(-length // self.stride) for length in x.shape[2:]).numel()
        return (
            1 < len(x) * tokens <= len(x) * _MOST_TOKENS
            and x.shape[1] <= _MOST_CHANNELS
            and all(weight.dtype == torch.float32 for weight in self.parameters())
            and untouched(self.qkv, Pointwise3d)
            and self.fine.fusable()
            and self.coarse.fusable()
        )

    def _mix_fused(self, x: Tensor, want_map: bool) -> tuple[Tensor, Tensor | None]:
        """Do what `_mix` does, in float32 throughout: tokens are few, and rounding them takes longer than it saves."""
        from fheat.ops.kernels.attention import short_attention
        from fheat.ops.kernels.tokens import token_products

        with kernels.on_device(x), without_autocast(x):
            tokens: Tensor = _Sample.apply(x, self.stride)  # type: ignore[no-untyped-call]
            grid, channels = tokens.shape[:-1], tokens.shape[-1]
            layers = self.qkv, self.fine[0], self.coarse[0]
            products = token_products(tokens.view(-1, channels), *(layer.weight.flatten(1) for layer in layers))  # type: ignore[operator]
            qkv = products[0].view(len(x), -1, self.heads, channels // self.heads)
            attended = short_attention(qkv).view(-1, channels // 3)
            local = (
                branch.behind_product(half, grid)
                for branch, half in zip((self.fine, self.coarse), products[1:], strict=True)
            )
            mixed = torch.cat([attended, *local], dim=1).view(tokens.shape).movedim(-1, 1)
            received = _received(qkv.detach()).view(len(x), 1, *grid[1:]) if want_map else None
        return mixed, received


class _Sample(torch.autograd.Function):
    """Every `stride`-th voxel along each axis: (N, C, X, Y, Z) -> (N, X/r, Y/r, Z/r, C), float32 and contiguous.

    As slices, the way back would be a tensor of zeros and a copy for each axis.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        ctx.shape, ctx.dtype, ctx.stride = x.shape, x.dtype, stride
        return x[:, :, ::stride, ::stride, ::stride].movedim(1, -1).float().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        samples, channels, *grid = ctx.shape
        out = gradient.new_zeros(samples, *grid, channels, dtype=ctx.dtype)
        out[:, :: ctx.stride, :: ctx.stride, :: ctx.stride] = gradient
        return out.movedim(-1, 1), None


def _received(qkv: Tensor) -> Tensor:
    """Return the mean attention that each token receives, (N, T), from q, k and v, (N, T, heads, 3 D)."""
    query, key, _ = qkv.transpose(1, 2).chunk(3, dim=-1)
    return (query @ key.transpose(-2, -1)).softmax(dim=-1).mean(dim=(1, 2))


class GatedMixer(nn.Module):
    """W_r( W_i x * sigmoid(W_g x) ) with twice as many channels inside, without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.value = Pointwise3d(channels, 2 * channels, bias=False)
        self.gating = Pointwise3d(channels, 2 * channels, bias=False)
        self.recover = Pointwise3d(2 * channels, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of (N, C, X, Y, Z)."""
        if kernels.usable(x) and untouched(self.value, Pointwise3d) and untouched(self.gating, Pointwise3d):
            both = pointwise(x, torch.cat([self.value.weight, self.gating.weight]))  # one product is faster than two
            gated = F.glu(both, dim=1)
        else:
            gated = self.value(x) * self.gating(x).sigmoid()
        out: Tensor = self.recover(gated)
        return out

    def added_to(self, x: Tensor) -> Tensor:
        """Return x + mixer(x); on a GPU in one pass up to some width, in float32 and with channels last in memory."""
        layers = self.value, self.gating, self.recover
        as_built = untouched(self, GatedMixer) and all(untouched(layer, Pointwise3d) for layer in layers)
        widest = _WIDEST_IN_FLOAT32 if operand_type(x) == "ieee" else WIDEST
        if not kernels.usable(x) or not as_built or x.shape[1] > widest:
            mixed: Tensor = self(x)
            return x + mixed
        from fheat.ops.kernels.gated import gated_mix  # Triton takes a second to import

        with kernels.on_device(x):
            rows = x.float().movedim(1, -1).contiguous()
            mixed = gated_mix(rows.view(-1, x.shape[1]), *(layer.weight.flatten(1) for layer in layers))
        return mixed.view(rows.shape).movedim(-1, 1)


class LightAttentionBlock(nn.Module):
    """x + DWConv3(x) without bias, then twice: x + attention(x), x + mixer(x)."""

    def __init__(self, channels: int, stride: int, heads: int) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv3d(channels, bias=False)
        self.attentions = nn.ModuleList(LightAttention(channels, stride, heads) for _ in range(2))
        self.mixers = nn.ModuleList(GatedMixer(channels) for _ in range(2))

    def forward(self, x: Tensor, want_map: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return the features and, if it is wanted, the attention map of the last attention."""
        x = x + self.depthwise(x)
        attention = None
        for mixing, mix in zip(self.attentions, self.mixers, strict=True):
            mixed, attention = mixing(x, want_map and mixing is self.attentions[-1])
            x = x + mixed
            x = mix.added_to(x) if isinstance(mix, GatedMixer) else x + mix(x)
        return x, attention


class LightAttentionStage(nn.Module):
    """A stage of `depth` attention blocks, used in the place of an `FHEATStage`.

    `block(channels, stride, heads)` builds a module that takes and returns what a `LightAttentionBlock` does.
    """

    def __init__(
        self, channels: int, depth: int, stride: int, heads: int, block: type[nn.Module] = LightAttentionBlock
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(channels, stride, heads) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the stage."""
        return self._run(x, want_map=False)[0]

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the attention map, (N, 1, X/r, Y/r, Z/r)."""
        x, attention = self._run(x, want_map=True)
        assert attention is not None
        return x, attention

    def _run(self, x: Tensor, *, want_map: bool) -> tuple[Tensor, Tensor | None]:
        """The sum of the blocks has no norm and grows from block to block, so it is kept in float32 under autocast."""
        if autocasts(x):
            x = x.float()
        attention = None
        for block in self.blocks:
            x, attention = block(x, want_map and block is self.blocks[-1])
        return x, attention
