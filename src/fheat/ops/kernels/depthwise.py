"""x + depthwise(x), 3x3x3 without bias, by fused kernels. Tensors are (N, X, Y, Z, C), float32, contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import depthwise
from fheat.ops.kernels.launch import partials, tiling


def residual_depthwise(x: Tensor, weight: Tensor) -> Tensor:
    """Return x + depthwise(x); `weight` (C, 1, 3, 3, 3)."""
    out: Tensor = _ResidualDepthwise.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


class _ResidualDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        samples, *grid, channels = x.shape
        plan = tiling(samples, grid[0] * grid[1] * grid[2], channels)
        out = torch.empty_like(x)
        depthwise.add_depthwise[plan.grid](x, x, weight, out, *grid, plan.span, **plan.shape, FLIP=False)
        ctx.save_for_backward(x, weight)
        ctx.plan, ctx.grid = plan, grid
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        plan, grid = ctx.plan, ctx.grid
        slope = slope.contiguous()
        x_slope, partial = torch.empty_like(x), partials(plan, weight.numel(), x)
        depthwise.add_depthwise[plan.grid](slope, slope, weight, x_slope, *grid, plan.span, **plan.shape, FLIP=True)
        depthwise.depthwise_weights[(*plan.grid, 27)](
            slope, x, partial, weight.numel(), 0, *grid, plan.span, **plan.shape, SPLITS=plan.splits, BIAS=False
        )
        return x_slope, partial.sum(dim=0).view_as(weight)
