"""Depthwise 3x3x3 convolution by fused kernels. Tensors are (N, X, Y, Z, C), contiguous; inputs are float32,
and so are results unless another type is asked for.

The convolution and the gradient of its weights each have three kernels, among which `fheat.ops.kernels.launch` chooses:
in runs along Z for what fits the cache and has channels in fours, by sweeps along X for large grids, else by tiles.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device.depthwise import convolve, convolve_runs, convolve_weights, convolve_weights_runs
from fheat.ops.kernels.device.sweep_runs import sweep_runs, sweep_runs_weights
from fheat.ops.kernels.launch import (
    Tiling,
    add_rows,
    lines_at_once,
    partials,
    runs,
    runs_for_sums,
    sweep_in_runs,
    tile_each,
    tiling,
)


def weight_tables(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return weights (C, 1, 3, 3, 3), all with the same C, as tables (27, C), the order in which kernels read them."""
    with torch.no_grad():
        return list(torch.stack([weight.flatten(1).t() for weight in weights]))


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return depthwise(x) + bias; `weight` is (C, 1, 3, 3, 3)."""
    shift = torch.zeros(len(weight), device=x.device) if bias is None else bias.float()
    out: Tensor = _Depthwise.apply(x, weight.float(), shift)  # type: ignore[no-untyped-call]
    return out


def depthwise_beside(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return depthwise(x) + bias in a given type, and x itself; what flows back to the two is added up in one pass."""
    shift = torch.zeros(len(weight), device=x.device) if bias is None else bias.float()
    y, beside = _DepthwiseBeside.apply(x, weight.float(), shift, dtype)  # type: ignore[no-untyped-call]
    return y, beside


def residual_depthwise(x: Tensor, weight: Tensor, table: Tensor) -> Tensor:
    """Return x + depthwise(x), without bias; `weight` is (C, 1, 3, 3, 3), `table` is its table."""
    out: Tensor = _ResidualDepthwise.apply(x, weight, table)  # type: ignore[no-untyped-call]
    return out


def biased(x: Tensor, table: Tensor, bias: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return depthwise(x) + bias in a given type, without gradients."""
    return _convolve(x, table, bias, back=False, bias=True, dtype=dtype)


def gradient_before(gradient: Tensor, table: Tensor, add: Tensor) -> Tensor:
    """Return `add` plus the input gradient of a depthwise convolution, computed from its output gradient."""
    return _convolve(gradient, table, add, back=True, bias=False)


def gradient_of_weights(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradients of the weights (C, 27) and of a bias (C), one after the other."""
    samples, *sizes, channels = x.shape
    plan = tiling(samples, sizes[0] * sizes[1] * sizes[2], channels)
    return add_rows_and_weights(None, gradient, x, plan)


def add_rows_and_weights(partial: Tensor | None, gradient: Tensor, x: Tensor, plan: Tiling) -> Tensor:
    """Return partial.sum(dim=0), whose last 28 C columns become the gradients of the weights (C, 27) and a bias (C).

    These columns of `partial` are filled here. Without `partial` there are no others.
    """
    samples, *sizes, channels = x.shape
    running = runs_for_sums(samples, (sizes[0], sizes[1], sizes[2]), channels, plan.samples * plan.splits)
    if running is not None:
        filled = running.grid[0]
        partial = torch.empty(filled, 28 * channels, device=x.device) if partial is None else partial
        width = partial.shape[1]
        at = width - 28 * channels
        convolve_weights_runs[running.grid](
            gradient, x, partial, width, at, *sizes, running.columns, running.span, **running.shape
        )
        return add_rows(partial, at, filled)
    sweeping = sweep_in_runs(samples, (sizes[0], sizes[1], sizes[2]), channels, sums=True)
    if sweeping is None:
        partial = partials(plan, 28 * channels, x) if partial is None else partial
        width = partial.shape[1]
        convolve_weights[(*plan.grid, 9)](
            gradient, x, partial, width, width - 28 * channels, *sizes, plan.span,
            **plan.shape, SPLITS=plan.splits,
        )  # fmt: skip
        return add_rows(partial)
    swept = torch.empty(sweeping.rows(channels), 28 * channels, device=x.device)
    sweep_runs_weights[sweeping.grid](gradient, x, swept, *sizes, sweeping.run, **sweeping.shape)
    if partial is None:
        return add_rows(swept)
    total = add_rows(partial)
    total[-28 * channels :] = add_rows(swept)
    return total


def _convolve(
    x: Tensor, table: Tensor, add: Tensor, *, back: bool, bias: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    samples, *sizes, channels = x.shape
    out = torch.empty(x.shape, device=x.device, dtype=dtype)
    running = runs(samples, (sizes[0], sizes[1], sizes[2]), channels)
    if running is not None:
        convolve_runs[running.grid](x, table, add, out, *sizes, running.items, **running.shape, FLIP=back, BIAS=bias)
        return out
    sweeping = sweep_in_runs(samples, (sizes[0], sizes[1], sizes[2]), channels, sums=False)
    if sweeping is None:
        grid, shape = tile_each(samples, sizes[0] * sizes[1] * sizes[2], channels)
        lines = lines_at_once(shape["BLOCK"] * shape["CP"])
        convolve[grid](x, table, add, out, *sizes, **shape, FLIP=back, BIAS=bias, LINES=lines)
    else:
        sweep_runs[sweeping.grid](x, table, add, out, *sizes, sweeping.run, **sweeping.shape, FLIP=back, BIAS=bias)
    return out


class _ResidualDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, table)
        return _convolve(x, table, x, back=False, bias=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, table = ctx.saved_tensors
        gradient = gradient.contiguous()
        weights = gradient_of_weights(gradient, x)[: weight.numel()]
        return gradient_before(gradient, table, gradient), weights.view_as(weight), None


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        (table,) = weight_tables([weight])
        ctx.save_for_backward(x, table)
        return biased(x, table, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        gradient, inward = gradient.contiguous(), None
        if ctx.needs_input_grad[0]:
            inward = _convolve(gradient, table, torch.zeros(x.shape[-1], device=x.device), back=True, bias=True)
        return inward, *_parameters(ctx, gradient, x)


class _DepthwiseBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        (table,) = weight_tables([weight])
        ctx.save_for_backward(x, table)
        return biased(x, table, bias, dtype), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, beside: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        gradient, inward = gradient.contiguous(), None
        if ctx.needs_input_grad[0]:
            inward = gradient_before(gradient, table, beside.contiguous())
        return inward, *_parameters(ctx, gradient, x), None


def _parameters(ctx: Any, gradient: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weight and bias where one of them is wanted."""
    if not any(ctx.needs_input_grad[1:]):
        return None, None
    channels = x.shape[-1]
    weights, bias = torch.split(gradient_of_weights(gradient, x), [27 * channels, channels])
    return weights.view(channels, 1, 3, 3, 3), bias
