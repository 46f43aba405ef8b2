"""Depthwise 3x3x3 convolution with stride 2, and transposed, by fused kernels.

Tensors are (N, X, Y, Z, C), contiguous; inputs are float32, and so are results unless another type is asked for.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.depthwise import weight_tables
from fheat.ops.kernels.device import strided
from fheat.ops.kernels.launch import add_rows, lines_at_once, partials, tile_each, tiling


def halved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution with padding 1 and stride 2, (N, ceil(X / 2), ...); `weight` is (C, 1, 3, 3, 3)."""
    return _apply(x, weight, bias, torch.float32, doubling=False)


def halved_beside(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output of `halved` and every second voxel of x along each axis, both in a given type, and x itself.

    What flows back to the three is added up in one pass.
    """
    shift = torch.zeros(len(weight), device=x.device) if bias is None else bias.float()
    y, second, whole = _HalvedBeside.apply(x, weight.float(), shift, dtype)  # type: ignore[no-untyped-call]
    return y, second, whole


def doubled(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the transposed convolution with padding 1 and stride 2 in a given type, (N, 2 X - 1, ...)."""
    return _apply(x, weight, bias, dtype, doubling=True)


def _apply(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, doubling: bool) -> Tensor:
    shift = torch.zeros(len(weight), device=x.device) if bias is None else bias.float()
    out: Tensor = _Strided.apply(x, weight.float(), shift, doubling, dtype)  # type: ignore[no-untyped-call]
    return out


def _halve(fine: Tensor, table: Tensor, add: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    samples, *_, channels = fine.shape
    grid, shape = tile_each(samples, sizes[0] * sizes[1] * sizes[2], channels)
    out = torch.empty(samples, *sizes, channels, device=fine.device, dtype=dtype)
    lines = lines_at_once(shape["BLOCK"] * shape["CP"])
    strided.halve[grid](fine, table, add, out, *sizes, *fine.shape[1:4], **shape, LINES=lines)
    return out


def _double(
    coarse: Tensor,
    table: Tensor,
    add: Tensor,
    sizes: Sequence[int],
    dtype: torch.dtype,
    second: Tensor | None = None,
) -> Tensor:
    samples, x, y, z, channels = coarse.shape
    shape = tile_each(samples, x * y * z, channels)[1]
    block = max(1, min(shape["BLOCK"], 1024 // shape["CP"]))  # a program keeps eight tiles
    out = torch.empty(samples, *sizes, channels, device=coarse.device, dtype=dtype)
    strided.double[(-(-x * y * z // block), samples)](
        coarse, table, add, coarse if second is None else second, out, x, y, z, *sizes,
        **shape | {"BLOCK": block}, BIAS=second is None,
    )  # fmt: skip
    return out


class _Strided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, doubling: bool, dtype: torch.dtype) -> Tensor:
        (table,) = weight_tables([weight])
        ctx.save_for_backward(x, table)
        ctx.doubling = doubling
        if doubling:
            return _double(x, table, bias, [2 * length - 1 for length in x.shape[1:4]], dtype)
        return _halve(x, table, bias, [-(-length // 2) for length in x.shape[1:4]], dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        channels = x.shape[-1]
        gradient, inward = gradient.contiguous(), None
        if ctx.needs_input_grad[0]:
            back = _halve if ctx.doubling else _double
            inward = back(gradient, table, torch.zeros(channels, device=x.device), x.shape[1:4], x.dtype)
        return inward, *_parameters(ctx, gradient, x, ctx.doubling), None, None


class _HalvedBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        (table,) = weight_tables([weight])
        ctx.save_for_backward(x, table)
        second = x[:, ::2, ::2, ::2].to(dtype, copy=True, memory_format=torch.contiguous_format)
        return _halve(x, table, bias, second.shape[1:4], dtype), second, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, second: Tensor, whole: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        gradient, inward = gradient.contiguous(), None
        if ctx.needs_input_grad[0]:
            inward = _double(gradient, table, whole.contiguous(), x.shape[1:4], x.dtype, second.contiguous())
        return inward, *_parameters(ctx, gradient, x, doubling=False), None


def _parameters(ctx: Any, gradient: Tensor, x: Tensor, doubling: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weight and bias where one of them is wanted."""
    if not any(ctx.needs_input_grad[1:]):
        return None, None
    coarse, fine = (x, gradient) if doubling else (gradient, x)
    samples, *sizes, channels = coarse.shape
    plan = tiling(samples, sizes[0] * sizes[1] * sizes[2], channels)
    partial = partials(plan, 36 * channels, x)
    strided.halve_weights[(*plan.grid, 9)](
        coarse, fine, partial, *sizes, *fine.shape[1:4], plan.span,
        **plan.shape, SPLITS=plan.splits, FINE=doubling,
    )  # fmt: skip
    weights, bias = torch.split(add_rows(partial), [27 * channels, 9 * channels])
    return weights.view(channels, 1, 3, 3, 3), bias.view(9, channels).sum(dim=0)
