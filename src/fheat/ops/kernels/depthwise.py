"""Depthwise 3x3x3 convolution by fused kernels. Tensors are (N, X, Y, Z, C), float32, contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device.depthwise import convolve, convolve_weights
from fheat.ops.kernels.launch import Tiling, partials, tile_each, tiling


def residual_depthwise(x: Tensor, weight: Tensor) -> Tensor:
    """Return x + depthwise(x), without bias; `weight` (C, 1, 3, 3, 3)."""
    out: Tensor = _ResidualDepthwise.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


def biased(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return depthwise(x) + bias, without gradients."""
    return _convolve(x, weight, bias, back=False, bias=True)


def slope_before(slope: Tensor, weight: Tensor, add: Tensor) -> Tensor:
    """Return `add` plus the gradient before a depthwise convolution from the one behind it."""
    return _convolve(slope, weight, add, back=True, bias=False)


def slope_of_weights(slope: Tensor, x: Tensor, partial: Tensor, at: int, plan: Tiling, *, bias: bool) -> None:
    """Write each program's share of the gradient of the weights (C, 27), and of a bias, into `partial` from `at` on."""
    convolve_weights[(*plan.grid, 9)](
        slope, x, partial, partial.shape[1], at, *x.shape[1:4], plan.span,
        **plan.shape, SPLITS=plan.splits, BIAS=bias,
    )  # fmt: skip


def _convolve(x: Tensor, weight: Tensor, add: Tensor, *, back: bool, bias: bool) -> Tensor:
    samples, *sizes, channels = x.shape
    grid, shape = tile_each(samples, sizes[0] * sizes[1] * sizes[2], channels)
    out = torch.empty_like(x)
    convolve[grid](x, weight, add, out, *sizes, **shape, FLIP=back, BIAS=bias)
    return out


class _ResidualDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, x, back=False, bias=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        samples, *sizes, channels = x.shape
        plan = tiling(samples, sizes[0] * sizes[1] * sizes[2], channels)
        slope, partial = slope.contiguous(), partials(plan, weight.numel(), x)
        slope_of_weights(slope, x, partial, 0, plan, bias=False)
        return slope_before(slope, weight, slope), partial.sum(dim=0).view_as(weight)
