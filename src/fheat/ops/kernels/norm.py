"""Group norm with one group, by fused kernels. Tensors are (N, X, Y, Z, C), float32, contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import norm
from fheat.ops.kernels.launch import Tiling, add_rows, pairs, partials, plan_of


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


def moments_of(x: Tensor, plan: Tiling, closed: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """Return the moments of x, of any floating type, or `kept` bit for bit if `closed` is set."""
    moments = pairs(plan, x)
    norm.find_moments[plan.grid](
        x, moments, moments if kept is None else kept, x if closed is None else closed, plan.voxels, plan.span,
        **plan.shape, SPLITS=plan.splits, FLAG=closed is not None,
    )  # fmt: skip
    return moments


def added(
    x: Tensor, y: Tensor, moments: Tensor, scale: Tensor, shift: Tensor, eps: float, plan: Tiling
) -> tuple[Tensor, Tensor]:
    """Return x + norm(y), given the moments of y, and the moments of the sum."""
    out, out_moments = torch.empty_like(x), pairs(plan, x)
    norm.residual_norm[plan.grid](
        x, y, moments, scale, shift, out, out_moments, plan.voxels, plan.span, eps,
        **plan.shape, SPLITS=plan.splits, ADD=True,
    )  # fmt: skip
    return out, out_moments


def gradient_before(
    gradient: Tensor,
    y: Tensor,
    moments: Tensor,
    sums: Tensor,
    scale: Tensor,
    eps: float,
    plan: Tiling,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return dL/dy in a given type from dL/dnorm(y) and its sums."""
    out = torch.empty(y.shape, device=y.device, dtype=dtype)
    norm.norm_gradient[plan.grid](
        gradient, gradient, y, moments, sums, scale, out, plan.voxels, plan.span, eps,
        **plan.shape, SPLITS=plan.splits, ADD=False,
    )  # fmt: skip
    return out


class _OneGroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        plan = plan_of(x)
        out, moments, out_moments = torch.empty_like(x), moments_of(x, plan), pairs(plan, x)
        norm.residual_norm[plan.grid](
            x, x, moments, scale, shift, out, out_moments, plan.voxels, plan.span, eps,
            **plan.shape, SPLITS=plan.splits, ADD=False,
        )  # fmt: skip
        ctx.save_for_backward(x, moments, scale)
        ctx.plan, ctx.eps = plan, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, scale = ctx.saved_tensors
        plan, eps = ctx.plan, ctx.eps
        gradient = gradient.contiguous()
        sums, partial = pairs(plan, x), partials(plan, 2 * plan.channels, x)
        sums_for_gradient(plan, gradient, x, moments, scale, sums, partial, 0, eps)
        out = gradient_before(gradient, x, moments, sums, scale, eps, plan)
        scale_gradient, shift_gradient = add_rows(partial).chunk(2)
        return out, scale_gradient, shift_gradient, None
