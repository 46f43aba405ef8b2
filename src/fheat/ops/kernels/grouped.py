"""Convolution with as many groups as input channels, by fused kernels. Tensors are (N, X, Y, Z, C), contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import grouped
from fheat.ops.kernels.launch import add_rows, tile_each, tiling


def grouped_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of (N, X, Y, Z, C) with weights (m C, 1, k, k, k), k odd, zeros outside the grid.

    Output channels m c to m c + m - 1 read input channel c. Sums and the output, (N, X, Y, Z, m C), are float32.
    """
    out: Tensor = _GroupedConv.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


def _convolve(x: Tensor, table: Tensor, side: int, *, back: bool) -> Tensor:
    samples, *sizes, inputs = x.shape
    channels = table.shape[1]
    grid, shape = tile_each(samples, sizes[0] * sizes[1] * sizes[2], channels)
    out = x.new_empty(samples, *sizes, channels, dtype=torch.float32)
    grouped.grouped[grid](x, table, out, *sizes, **shape, SHARE=channels // inputs, SIDE=side, FLIP=back)
    return out


class _GroupedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        table = weight.flatten(1).t().contiguous()
        ctx.save_for_backward(x, table)
        ctx.side = weight.shape[-1]
        return _convolve(x, table, ctx.side, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, table = ctx.saved_tensors
        side, channels = ctx.side, table.shape[1]
        samples, *sizes, inputs = x.shape
        gradient, inward, weights = gradient.contiguous(), None, None
        if ctx.needs_input_grad[0]:
            each = _convolve(gradient, table, side, back=True)
            inward = each.view(samples, *sizes, inputs, channels // inputs).sum(dim=-1).to(x.dtype)
        if ctx.needs_input_grad[1]:
            plan = tiling(samples, sizes[0] * sizes[1] * sizes[2], channels)
            partial = gradient.new_empty(samples, channels * side**3)
            grouped.grouped_weights[(samples, side**3)](
                gradient, x, partial, *sizes, **plan.shape, SHARE=channels // inputs, SIDE=side
            )
            weights = add_rows(partial).view(channels, 1, side, side, side)
        return inward, weights
