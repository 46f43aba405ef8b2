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
    out: Tensor = _GroupedConv.apply(x, weight, False)  # type: ignore[no-untyped-call]
    return out


def grouped_conv_gelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return gelu(grouped_conv(x, weight))."""
    out: Tensor = _GroupedConv.apply(x, weight, True)  # type: ignore[no-untyped-call]
    return out


class _GroupedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gelu: bool) -> Tensor:
        samples, *sizes, inputs = x.shape
        side, channels = weight.shape[-1], len(weight)
        table = weight.flatten(1).t().contiguous()
        out = torch.empty(samples, *sizes, channels, device=x.device)
        active = torch.empty_like(out) if gelu else out
        grid, shape = tile_each(samples, sizes[0] * sizes[1] * sizes[2], channels)
        grouped.grouped[grid](x, table, out, active, *sizes, **shape, SHARE=channels // inputs, SIDE=side, GELU=gelu)
        ctx.save_for_backward(x, table, *([out] if gelu else []))
        ctx.side = side
        return active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, table, *before = ctx.saved_tensors
        side, channels = ctx.side, table.shape[1]
        samples, *sizes, inputs = x.shape
        voxels, share = sizes[0] * sizes[1] * sizes[2], channels // inputs
        gradient, inward, weights = gradient.contiguous(), None, None
        if before:
            gradient = torch.ops.aten.gelu_backward(gradient, before[0])
        if ctx.needs_input_grad[0]:
            inward = torch.empty_like(x)
            grid, shape = tile_each(samples, voxels, inputs)
            grouped.grouped_back[grid](gradient, table, inward, *sizes, **shape, SHARE=share, SIDE=side)
        if ctx.needs_input_grad[1]:
            plan = tiling(samples, voxels, channels)
            partial = torch.empty(samples, channels * side**3, device=x.device)
            grouped.grouped_weights[(samples, side**3)](
                gradient, x, partial, *sizes, **plan.shape, SHARE=share, SIDE=side
            )
            weights = add_rows(partial).view(channels, 1, side, side, side)
        return inward, weights, None
