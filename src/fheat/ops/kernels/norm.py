"""Group norm with one group, by fused kernels. Tensors are (N, X, Y, Z, C), float32, contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import norm
from fheat.ops.kernels.launch import Tiling, add_rows, pairs, partials, tiling


def one_group_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * scale + shift; moments are per sample, parameters per channel."""
    out: Tensor = _OneGroupNorm.apply(x, scale, shift, eps)  # type: ignore[no-untyped-call]
    return out


def sums_for_gradient(
    plan: Tiling,
    gradient: Tensor,
    y: Tensor,
    moments: Tensor,
    scale: Tensor,
    sums: Tensor,
    partial: Tensor,
    at: int,
    eps: float,
) -> None:
    """Fill `sums`, which dL/dy needs from dL/dnorm(y), and the columns of `partial` from `at` on: scale and shift."""
    tensors, width = (gradient, y, moments, scale, sums, partial), partial.shape[1]
    constants = plan.shape | {"SPLITS": plan.splits, "TILES": plan.span // plan.block}
    norm.norm_sums[plan.grid](*tensors, width, at, plan.voxels, plan.span, eps, **constants)


class _OneGroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        samples, *grid, channels = x.shape
        plan = tiling(samples, grid[0] * grid[1] * grid[2], channels)
        out, moments, out_moments = torch.empty_like(x), pairs(plan, x), pairs(plan, x)
        ends = plan.voxels, plan.span
        constants = plan.shape | {"SPLITS": plan.splits}
        norm.find_moments[plan.grid](x, moments, *ends, **constants)
        norm.residual_norm[plan.grid](x, x, moments, scale, shift, out, out_moments, *ends, eps, **constants, ADD=False)
        ctx.save_for_backward(x, moments, scale)
        ctx.plan, ctx.eps = plan, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, scale = ctx.saved_tensors
        plan, eps = ctx.plan, ctx.eps
        gradient = gradient.contiguous()
        sums, partial, out = pairs(plan, x), partials(plan, 2 * plan.channels, x), torch.empty_like(x)
        ends = plan.voxels, plan.span
        sums_for_gradient(plan, gradient, x, moments, scale, sums, partial, 0, eps)
        norm.norm_gradient[plan.grid](
            gradient, gradient, x, moments, sums, scale, out, *ends, eps, **plan.shape, SPLITS=plan.splits, ADD=False
        )
        scale_gradient, shift_gradient = add_rows(partial).chunk(2)
        return out, scale_gradient, shift_gradient, None
