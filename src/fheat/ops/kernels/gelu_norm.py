"""Group norm with one group and a GELU behind it, by fused kernels.

Tensors are (N, X, Y, Z, C), float32, contiguous.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import gelu_norm as device
from fheat.ops.kernels.launch import add_rows, pairs, partials, plan_of
from fheat.ops.kernels.norm import moments_of


def gelu_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Return GELU(u), u = (x - mean) / sqrt(variance + eps) * scale + shift; moments are per sample, the others per
    channel."""
    out: Tensor = _GeluNorm.apply(x, scale, shift, eps)  # type: ignore[no-untyped-call]
    return out


class _GeluNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        plan = plan_of(x)
        out, moments = torch.empty_like(x), moments_of(x, plan)
        ends, shape = (plan.voxels, plan.span), {**plan.shape, "SPLITS": plan.splits}
        device.gelu_norm[plan.grid](x, moments, scale, shift, out, *ends, eps, **shape)
        ctx.save_for_backward(x, moments, scale, shift)
        ctx.plan, ctx.eps = plan, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, scale, shift = ctx.saved_tensors
        plan, gradient = ctx.plan, gradient.contiguous()
        sums, partial, out = pairs(plan, x), partials(plan, 2 * plan.channels, x), torch.empty_like(x)
        ends, shape = (plan.voxels, plan.span, ctx.eps), {**plan.shape, "SPLITS": plan.splits}
        device.gelu_norm_sums[plan.grid](gradient, x, moments, scale, shift, sums, partial, *ends, **shape)
        device.gelu_norm_gradient[plan.grid](gradient, x, moments, sums, scale, shift, out, *ends, **shape)
        scale_gradient, shift_gradient = add_rows(partial).chunk(2)
        return out, scale_gradient, shift_gradient, None
