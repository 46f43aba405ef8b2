"""residual + W2 GELU(W1 norm(y) + b1) + b2 by fused kernels: a convolution block behind its depthwise convolution.

The norm is that of each channel. The plain twin is the body of `fheat.networks.large_u.ConvBlock`. Tensors are
(N, X, Y, Z, C), float32, contiguous.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops import kernels
from fheat.ops.kernels.device import channel_norm, widen
from fheat.ops.kernels.launch import Tiling, add_rows, channel_tiling, operand_type, padded, partials

_FOR_THREE = 168
"""Most registers of a thread with which three programs of four warps share a multiprocessor."""


class WidenWeights(NamedTuple):
    """Parameters of the norm and of the two products, in the shapes of their modules."""

    norm: Tensor
    norm_bias: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor


def widened(y: Tensor, residual: Tensor, weights: WidenWeights, eps: float = 1e-5) -> Tensor:
    """Return residual + W2 GELU(W1 norm(y) + b1) + b2; y is (N, X, Y, Z, C), residual and result (N, X, Y, Z, out)."""
    out: Tensor = _Widen.apply(y, residual, eps, operand_type(y), *weights)  # type: ignore[no-untyped-call]
    return out


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, residual: Tensor, eps: float, dot: str, *weights: Tensor) -> Tensor:
        w = WidenWeights(*weights)
        samples, *grid, channels = y.shape
        plan = channel_tiling(samples, grid[0] * grid[1] * grid[2], channels)
        moments = torch.empty(samples, plan.splits, 2, channels, device=y.device)
        out = torch.empty(*residual.shape, device=y.device)
        channel_norm.find_channel_moments[plan.grid](
            y, moments, plan.voxels, plan.span, **plan.shape, SPLITS=plan.splits
        )
        folded = kernels.on_trial()
        forward = widen.widen_folded if folded else widen.widen_forward
        forward[plan.grid](
            y, moments, *w, residual, out, plan.voxels, plan.span, eps,
            **plan.shape | _widths(w) | (_folded(plan, w) if folded else {}), SPLITS=plan.splits, DOT=dot,
        )  # fmt: skip
        ctx.save_for_backward(y, moments, *weights)
        ctx.plan, ctx.eps, ctx.dot = plan, eps, dot
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        y, moments, *weights = ctx.saved_tensors
        w, plan, eps = WidenWeights(*weights), ctx.plan, ctx.eps
        sizes = [w.first.numel(), w.second.numel(), len(w.first), len(w.second), plan.channels, plan.channels]
        width = sum(sizes)
        partial, y_gradient, gradient = partials(plan, width, y), torch.empty_like(y), gradient.contiguous()
        # Wide tiles fill the registers: half as many voxels for twice as many warps.
        tile = {"BLOCK": 32, "num_warps": 8} if plan.padded > 32 else {}
        backward = widen.widen_backward
        if kernels.on_trial():
            tile, backward = _folded_back(plan, w), widen.widen_gradients
        backward[plan.grid](
            gradient, y, moments, *w[:5], y_gradient, partial, width, plan.voxels, plan.span, eps,
            **plan.shape | _widths(w) | tile, SPLITS=plan.splits, DOT=ctx.dot,
        )  # fmt: skip
        channel_norm.channel_norm_gradient[plan.grid](
            y_gradient, y, moments, w.norm, partial, width, width - 2 * plan.channels, y_gradient, plan.voxels,
            plan.span, eps, **plan.shape, SPLITS=plan.splits,
        )  # fmt: skip
        by_name = dict(zip(
            ("first", "second", "first_bias", "second_bias", "norm", "norm_bias"),
            torch.split(add_rows(partial), sizes), strict=True,
        ))  # fmt: skip
        gradients = (by_name[name].view_as(value) for name, value in zip(WidenWeights._fields, weights, strict=True))
        return y_gradient, gradient, None, None, *gradients


def _folded(plan: Tiling, w: WidenWeights) -> dict[str, int]:
    """Return tiles of `widen_folded`. Registers are limited to those with which three programs share a multiprocessor;
    more output channels would not fit them."""
    few = {"maxnreg": _FOR_THREE} if len(w.second) <= 64 else {}
    return {"TILES": plan.span // plan.block} | few


def _folded_back(plan: Tiling, w: WidenWeights) -> dict[str, int]:
    """Return tiles of `widen_gradients`; the next one is read while one is worked on."""
    tile = {"BLOCK": 32, "TILES": plan.span // 32, "num_stages": 2}
    if plan.padded > 32:
        return tile | {"num_warps": 8}
    return tile | ({"maxnreg": _FOR_THREE} if len(w.second) <= 32 else {})


def _widths(w: WidenWeights) -> dict[str, int]:
    hidden, out = len(w.first), len(w.second)
    return {"H": hidden, "HP": padded(hidden), "N": out, "NP": padded(out)}
