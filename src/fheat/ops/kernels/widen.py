"""residual + W2 GELU(W1 norm(y) + b1) + b2 by fused kernels: a convolution block behind its depthwise convolution.

The norm is that of each channel. The plain twin is the body of `fheat.networks.large_u.ConvBlock`. Tensors are
(N, X, Y, Z, C), contiguous, results float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops import kernels
from fheat.ops.kernels.device import channel_norm, widen
from fheat.ops.kernels.launch import Tiling, add_rows, channel_tiling, has_room, operand_type, padded, partials

_MUCH = 150_000
"""Bytes of shared memory of the largest tiles."""
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
    out: Tensor = _Widen.apply(y, residual, None, eps, operand_type(y), *weights)  # type: ignore[no-untyped-call]
    return out


def widened_upon(y: Tensor, coarse: Tensor, skip: Tensor, weights: WidenWeights, eps: float = 1e-5) -> Tensor:
    """Return skip + pad(spread(coarse) + W2 GELU(W1 norm(y) + b1) + b2): the end of a block that doubles the grid.

    y is (N, 2X - 1, 2Y - 1, 2Z - 1, C). `coarse`, (N, X, Y, Z, out), is spread over every second voxel of that grid,
    and `pad` puts one plane of zeros in front of each axis. `skip` and result are (N, 2X, 2Y, 2Z, out).
    """
    out: Tensor = _Widen.apply(y, coarse, skip, eps, operand_type(y), *weights)  # type: ignore[no-untyped-call]
    return out


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, residual: Tensor, skip: Tensor | None, eps: float, dot: str, *weights: Tensor
    ) -> Tensor:
        w = WidenWeights(*weights)
        samples, *grid, channels = y.shape
        plan = channel_tiling(samples, grid[0] * grid[1] * grid[2], channels)
        moments = torch.empty(samples, plan.splits, 2, channels, device=y.device)
        out = torch.empty(residual.shape if skip is None else skip.shape, device=y.device)
        channel_norm.find_channel_moments[plan.grid](
            y, moments, plan.voxels, plan.span, **plan.small_shape, SPLITS=plan.splits
        )
        widen.widen_forward[plan.grid](
            y, moments, *w, residual, out if skip is None else skip, out, plan.voxels, plan.span, eps,
            **plan.shape | _widths(w) | _tiles(plan, w) | _grid(y, skip), SPLITS=plan.splits, DOT=dot,
        )  # fmt: skip
        if skip is not None:
            out[:, 0], out[:, :, 0], out[:, :, :, 0] = skip[:, 0], skip[:, :, 0], skip[:, :, :, 0]
        ctx.save_for_backward(y, moments, *weights)
        ctx.plan, ctx.eps, ctx.dot, ctx.grid = plan, eps, dot, _grid(y, skip)
        ctx.tiles = _tiles_back(plan, w, y, dot)  # the way back may run in a thread that knows no trial
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        y, moments, *weights = ctx.saved_tensors
        w, plan, eps = WidenWeights(*weights), ctx.plan, ctx.eps
        sizes = [w.first.numel(), w.second.numel(), len(w.first), len(w.second), plan.channels, plan.channels]
        width = sum(sizes)
        partial, y_gradient, gradient = partials(plan, width, y), torch.empty_like(y), gradient.contiguous()
        widen.widen_backward[plan.grid](
            gradient, y, moments, *w[:5], y_gradient, partial, width, plan.voxels, plan.span, eps,
            **plan.shape | _widths(w) | ctx.tiles | ctx.grid, SPLITS=plan.splits, DOT=ctx.dot,
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
        if ctx.grid["FX"]:
            return y_gradient, gradient[:, 1::2, 1::2, 1::2], gradient, None, None, *gradients
        return y_gradient, gradient, None, None, None, *gradients


def _tiles(plan: Tiling, w: WidenWeights) -> dict[str, int]:
    """Return tiles of `widen_forward`. Registers are limited to those with which three programs share a multiprocessor;
    more output channels would not fit them."""
    few = {"maxnreg": _FOR_THREE} if len(w.second) <= 64 else {}
    return {"TILES": plan.span // plan.block} | few


def _tiles_back(plan: Tiling, w: WidenWeights, y: Tensor, dot: str) -> dict[str, int]:
    """Return tiles of `widen_backward`; the next one is read while one is worked on.

    A tile takes about as long with 32 voxels as with many: its steps wait for each other. On trial are those with as
    many voxels as products of one group of four warps, or of two, have rows; operands in float32 would not fit.
    """
    room = kernels.on_trial() and plan.channels < plan.padded and len(w.first) < padded(len(w.first))
    if kernels.on_trial() and dot != "ieee" and has_room(y, _MUCH):
        return _large_tiles_back(plan, w) | {"ROOM": room}
    tile = {"BLOCK": 32, "TILES": plan.span // 32, "num_stages": 2, "ROOM": room}
    if plan.padded > 32:
        return tile | {"num_warps": 8}
    return tile | ({"maxnreg": _FOR_THREE} if len(w.second) <= 32 else {})


def _large_tiles_back(plan: Tiling, w: WidenWeights) -> dict[str, int]:
    if plan.padded > 32:
        stages = 2 if len(w.second) <= 32 else 1
        return {"BLOCK": 128, "TILES": plan.span // 128, "num_stages": stages, "num_warps": 8}
    tile = {"BLOCK": 64, "TILES": plan.span // 64, "num_stages": 2}
    return tile | ({"maxnreg": _FOR_THREE} if len(w.second) <= 32 else {})


def _grid(y: Tensor, skip: Tensor | None) -> dict[str, int]:
    """Return the grid of y as constants where a result is added to `skip`, zeros elsewhere."""
    return dict(zip(("FX", "FY", "FZ"), (0, 0, 0) if skip is None else y.shape[1:4], strict=True))


def _widths(w: WidenWeights) -> dict[str, int]:
    hidden, out = len(w.first), len(w.second)
    return {"H": hidden, "HP": padded(hidden), "N": out, "NP": padded(out)}
