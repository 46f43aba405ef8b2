"""The norm of each sample and channel by fused kernels. Tensors are (N, X, Y, Z, C), contiguous, the input float32."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import channel_norm
from fheat.ops.kernels.launch import add_rows, channel_tiling, partials


def channel_norm_of(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias in a given type; moments are over each sample's grid."""
    out: Tensor = _ChannelNorm.apply(x, weight, bias, eps, dtype)  # type: ignore[no-untyped-call]
    return out


class _ChannelNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        samples, *grid, channels = x.shape
        plan = channel_tiling(samples, grid[0] * grid[1] * grid[2], channels)
        moments = torch.empty(samples, plan.splits, 2, channels, device=x.device)
        out = torch.empty_like(x, dtype=dtype)
        channel_norm.find_channel_moments[plan.grid](
            x, moments, plan.voxels, plan.span, **plan.small_shape, SPLITS=plan.splits
        )
        channel_norm.channel_norm_forward[plan.grid](
            x, moments, weight, bias, out, plan.voxels, plan.span, eps, **plan.shape, SPLITS=plan.splits
        )
        ctx.save_for_backward(x, moments, weight)
        ctx.plan, ctx.eps = plan, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, weight = ctx.saved_tensors
        plan, eps, gradient = ctx.plan, ctx.eps, gradient.contiguous()
        width = 2 * plan.channels
        partial, inward = partials(plan, width, x), torch.empty_like(x)
        channel_norm.channel_norm_sums[plan.grid](
            gradient, x, moments, partial, plan.voxels, plan.span, eps, **plan.shape, SPLITS=plan.splits
        )
        channel_norm.channel_norm_gradient[plan.grid](
            gradient, x, moments, weight, partial, width, 0, inward, plan.voxels, plan.span, eps,
            **plan.shape, SPLITS=plan.splits,
        )  # fmt: skip
        return inward, *torch.split(add_rows(partial), plan.channels), None, None
