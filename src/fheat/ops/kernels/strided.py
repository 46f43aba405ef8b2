"""Depthwise 3x3x3 convolution with stride 2, and transposed, by fused kernels.

Tensors are (N, X, Y, Z, C), float32, contiguous.
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
    return _apply(x, weight, bias, doubling=False)


def doubled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the transposed convolution with padding 1 and stride 2, (N, 2 X - 1, ...)."""
    return _apply(x, weight, bias, doubling=True)


def _apply(x: Tensor, weight: Tensor, bias: Tensor | None, *, doubling: bool) -> Tensor:
    shift = torch.zeros(len(weight), device=x.device) if bias is None else bias.float()
    out: Tensor = _Strided.apply(x, weight.float(), shift, doubling)  # type: ignore[no-untyped-call]
    return out


def _halve(fine: Tensor, table: Tensor, add: Tensor, sizes: Sequence[int]) -> Tensor:
    samples, *_, channels = fine.shape
    grid, shape = tile_each(samples, sizes[0] * sizes[1] * sizes[2], channels)
    out = torch.empty(samples, *sizes, channels, device=fine.device)
    lines = lines_at_once(shape["BLOCK"] * shape["CP"])
    strided.halve[grid](fine, table, add, out, *sizes, *fine.shape[1:4], **shape, LINES=lines)
    return out


def _double(coarse: Tensor, table: Tensor, add: Tensor, sizes: Sequence[int]) -> Tensor:
    samples, x, y, z, channels = coarse.shape
    shape = tile_each(samples, x * y * z, channels)[1]
    block = max(1, min(shape["BLOCK"], 1024 // shape["CP"]))  # a program keeps eight tiles
    out = torch.empty(samples, *sizes, channels, device=coarse.device)
    strided.double[(-(-x * y * z // block), samples)](
        coarse, table, add, out, x, y, z, *sizes, **shape | {"BLOCK": block}
    )
    return out


class _Strided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, doubling: bool) -> Tensor:
        (table,) = weight_tables([weight])
        ctx.save_for_backward(x, table)
        ctx.doubling = doubling
        if doubling:
            return _double(x, table, bias, [2 * length - 1 for length in x.shape[1:4]])
        return _halve(x, table, bias, [-(-length // 2) for length in x.shape[1:4]])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        channels = x.shape[-1]
        gradient, inward, weights, bias = gradient.contiguous(), None, None, None
        if ctx.needs_input_grad[0]:
            back = _halve if ctx.doubling else _double
            inward = back(gradient, table, torch.zeros(channels, device=x.device), x.shape[1:4])
        if any(ctx.needs_input_grad[1:]):
            coarse, fine = (x, gradient) if ctx.doubling else (gradient, x)
            samples, *sizes, _ = coarse.shape
            plan = tiling(samples, sizes[0] * sizes[1] * sizes[2], channels)
            partial = partials(plan, 36 * channels, x)
            strided.halve_weights[(*plan.grid, 9)](
                coarse, fine, partial, *sizes, *fine.shape[1:4], plan.span,
                **plan.shape, SPLITS=plan.splits, FINE=ctx.doubling,
            )  # fmt: skip
            weights, bias = torch.split(add_rows(partial), [27 * channels, 9 * channels])
            weights, bias = weights.view(channels, 1, 3, 3, 3), bias.view(9, channels).sum(dim=0)
        return inward, weights, bias, None
