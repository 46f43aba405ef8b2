"""Group norm with one group, by fused kernels. Tensors are (N, X, Y, Z, C), float32, contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import norm
from fheat.ops.kernels.launch import add_rows, pairs, partials, tiling


def one_group_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * scale + shift; moments are per sample, parameters per channel."""
    out: Tensor = _OneGroupNorm.apply(x, scale, shift, eps)  # type: ignore[no-untyped-call]
    return out


class _OneGroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        samples, *grid, channels = x.shape
        plan = tiling(samples, grid[0] * grid[1] * grid[2], channels)
        out, moments, out_moments = torch.empty_like(x), pairs(plan, x), pairs(plan, x)
        ends = plan.voxels, plan.span
        norm.find_moments[plan.grid](x, moments, *ends, **plan.shape, SPLITS=plan.splits)
        norm.residual_norm[plan.grid](
            x, x, moments, scale, shift, out, out_moments, *ends, eps, **plan.shape, SPLITS=plan.splits, ADD=False
        )
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
        norm.norm_sums[plan.grid](
            gradient, x, moments, scale, sums, partial, 2 * plan.channels, 0, *ends, eps,
            **plan.shape, SPLITS=plan.splits,
        )  # fmt: skip
        norm.norm_gradient[plan.grid](
            gradient, gradient, x, moments, sums, scale, out, *ends, eps, **plan.shape, SPLITS=plan.splits, ADD=False
        )
        scale_gradient, shift_gradient = add_rows(partial).chunk(2)
        return out, scale_gradient, shift_gradient, None
