"""x + norm(KAN3D(x)) by fused kernels: the second half of an FHEAT block.

The plain twin is `fheat.nn.blocks.FHEATBlock`. Tensors are (N, X, Y, Z, C), float32, contiguous.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import mixer, norm
from fheat.ops.kernels.launch import add_rows, operand_type, pairs, partials, plan_of, power_of_two
from fheat.ops.kernels.norm import added, sums_for_gradient


class MixerWeights(NamedTuple):
    """Parameters of one KAN3D mixer of ratio 1 and of the norm behind it, in the shapes of their modules."""

    norm: Tensor
    norm_bias: Tensor
    first: Tensor
    first_bias: Tensor
    numerator: Tensor
    denominator: Tensor
    second: Tensor
    second_bias: Tensor
    after: Tensor
    after_bias: Tensor


def mixer_half(x: Tensor, moments: Tensor, weights: MixerWeights, eps: float = 1e-5) -> Tensor:
    """Return x + norm(KAN3D(x)), given the moments of x."""
    out: Tensor = _MixerHalf.apply(x, moments, eps, operand_type(x), *weights)  # type: ignore[no-untyped-call]
    return out


class _MixerHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, moments: Tensor, eps: float, dot: str, *weights: Tensor) -> Tensor:
        w, plan = MixerWeights(*weights), plan_of(x)
        y, y_moments = torch.empty_like(x), pairs(plan, x)
        mixer.mixer_forward[plan.grid](
            x, moments, w.norm, w.norm_bias, w.first, w.first_bias, w.numerator, w.denominator, w.second,
            w.second_bias, y, y_moments, plan.voxels, plan.span, eps,
            **plan.shape, SPLITS=plan.splits, GROUPS=len(w.denominator), DOT=dot,
        )  # fmt: skip
        after, _ = added(x, y, y_moments, w.after, w.after_bias, eps, plan)
        ctx.save_for_backward(x, moments, y, y_moments, *weights)
        ctx.plan, ctx.eps, ctx.dot = plan, eps, dot
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, y, y_moments, *weights = ctx.saved_tensors
        w, plan, eps, dot = MixerWeights(*weights), ctx.plan, ctx.eps, ctx.dot
        c, splits = plan.channels, plan.splits
        sizes = [c * c, c * c, c, c, c, c, 6, w.denominator.numel(), c, c]
        width = sum(sizes)
        partial = partials(plan, width, x)
        y_sums, sums = pairs(plan, x), pairs(plan, x)
        gradient = gradient.contiguous()
        normal_gradient, x_gradient = torch.empty_like(x), torch.empty_like(x)
        sums_for_gradient(plan, gradient, y, y_moments, w.after, y_sums, partial, width - 2 * c, eps)
        groups = len(w.denominator)
        mixer.mixer_backward[plan.grid](
            gradient, y, y_moments, y_sums, w.after, x, moments, w.norm, w.norm_bias, w.first, w.first_bias,
            w.numerator, w.denominator, w.second, normal_gradient, sums, partial, width, plan.voxels, plan.span, eps,
            **plan.shape_of_gradients(16, 4), SPLITS=splits, GROUPS=groups, GP=power_of_two(groups), DOT=dot,
        )  # fmt: skip
        norm.norm_gradient[plan.grid](
            gradient, normal_gradient, x, moments, sums, w.norm, x_gradient, plan.voxels, plan.span, eps,
            **plan.shape, SPLITS=splits, ADD=True,
        )  # fmt: skip
        by_name = dict(zip(
            ("first", "second", "first_bias", "second_bias", "norm", "norm_bias", "numerator", "denominator", "after",
             "after_bias"),
            torch.split(add_rows(partial), sizes), strict=True,
        ))  # fmt: skip
        gradients = (by_name[name].view_as(value) for name, value in zip(MixerWeights._fields, weights, strict=True))
        return x_gradient, None, None, None, *gradients
