"""x + norm(FHEAT(x)) by fused kernels: the first half of an FHEAT block.

The plain twin is `fheat.nn.blocks.FHEATBlock`. Tensors are (N, X, Y, Z, C), float32, contiguous.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels import depthwise, transform
from fheat.ops.kernels.device import fheat, norm
from fheat.ops.kernels.launch import operand_type, pairs, partials, tiling
from fheat.ops.kernels.norm import sums_for_gradient


class FHEATWeights(NamedTuple):
    """Parameters of one FHEAT and of the norm behind it, in the shapes of their modules."""

    depthwise: Tensor
    depthwise_bias: Tensor
    project: Tensor
    project_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    out: Tensor
    out_bias: Tensor
    after: Tensor
    after_bias: Tensor


class Mixed(NamedTuple):
    """The features x + norm(FHEAT(x)), their moments, which the next norm needs, and y = FHEAT(x)."""

    x: Tensor
    moments: Tensor
    y: Tensor


def fheat_half(
    x: Tensor,
    gate: tuple[Tensor, Tensor | None] | None,
    weights: FHEATWeights,
    table: Tensor,
    eps: float = 1e-5,
) -> Mixed:
    """Return x + norm(FHEAT(x)).

    `gate` is the multiplier (X, Y, Z) and the flag "closed", or None where no transform is needed; `table` is the table
    of the depthwise weights.
    """
    multiplier, closed = gate or (None, None)
    rest = eps, operand_type(x), *weights
    return Mixed(*_FHEATHalf.apply(x, multiplier, closed, table, *rest))  # type: ignore[no-untyped-call]


class _FHEATHalf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        multiplier: Tensor | None,
        closed: Tensor | None,
        table: Tensor,
        eps: float,
        dot: str,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        w = FHEATWeights(*weights)
        samples, *grid, channels = x.shape
        plan = tiling(samples, grid[0] * grid[1] * grid[2], channels)
        constants = plan.shape | {"SPLITS": plan.splits}
        local = depthwise.biased(x, table, w.depthwise_bias)
        v, g, y, after = (torch.empty_like(x) for _ in range(4))
        moments, y_moments, after_moments = (pairs(plan, x) for _ in range(3))
        fheat.project_forward[plan.grid](
            local, w.project, w.project_bias, v, g, moments, plan.voxels, plan.span, **constants, DOT=dot
        )  # fmt: skip
        t, spectrum = v, None
        if multiplier is not None:
            t, spectrum = transform.filtered(v, multiplier, closed, keep_spectrum=ctx.needs_input_grad[1])
            t_moments = pairs(plan, x)
            norm.find_moments[plan.grid](t, t_moments, plan.voxels, plan.span, **constants)
            # A closed gate uses the moments of v as if there were no gate: another order of sums changes the last bit.
            moments = t_moments if closed is None else torch.where(closed, moments, t_moments)
        fheat.gated_forward[plan.grid](
            t, moments, w.norm, w.norm_bias, g, w.out, w.out_bias, y, y_moments, plan.voxels, plan.span, eps,
            **constants, DOT=dot,
        )  # fmt: skip
        norm.residual_norm[plan.grid](
            x, y, y_moments, w.after, w.after_bias, after, after_moments, plan.voxels, plan.span, eps,
            **constants, ADD=True,
        )  # fmt: skip
        ctx.save_for_backward(x, local, table, multiplier, closed, t, g, y, spectrum, moments, y_moments, *weights)
        ctx.plan, ctx.eps, ctx.dot = plan, eps, dot
        ctx.mark_non_differentiable(after_moments, y)
        return after, after_moments, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, local, table, multiplier, closed, t, g, y, spectrum, moments, y_moments, *weights = ctx.saved_tensors
        w, plan, eps, dot = FHEATWeights(*weights), ctx.plan, ctx.eps, ctx.dot
        c, splits = plan.channels, plan.splits
        sizes = [c * c, c, c, c, c, c, 2 * c * c, 2 * c, 27 * c, c]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        width = sum(sizes)
        partial = partials(plan, width, x)
        y_sums, sums = pairs(plan, x), pairs(plan, x)
        gradient = gradient.contiguous()
        normal_gradient, gate_gradient, local_gradient = (torch.empty_like(x) for _ in range(3))
        sums_for_gradient(plan, gradient, y, y_moments, w.after, y_sums, partial, starts[4], eps)
        ends = plan.voxels, plan.span
        fheat.gated_backward[plan.grid](
            gradient, y, y_moments, y_sums, w.after, t, moments, w.norm, w.norm_bias, g, w.out, normal_gradient,
            gate_gradient, sums, partial, width, *ends, eps,
            **plan.shape_of_gradients(64, 8), SPLITS=splits, DOT=dot,
        )  # fmt: skip
        # Without a transform, `project_backward` computes the gradient of the norm before it itself.
        value_gradient, multiplier_gradient = normal_gradient, None
        if multiplier is not None:
            value_gradient = torch.empty_like(x)
            norm.norm_gradient[plan.grid](
                normal_gradient, normal_gradient, t, moments, sums, w.norm, value_gradient, *ends, eps,
                **plan.shape, SPLITS=splits, ADD=False,
            )  # fmt: skip
            learned = ctx.needs_input_grad[1]
            value_gradient, behind = transform.filtered(value_gradient, multiplier, closed, keep_spectrum=learned)
            multiplier_gradient = (behind * spectrum).sum(dim=(0, 4)) if learned else None
        fheat.project_backward[plan.grid](
            value_gradient, t, moments, sums, w.norm, gate_gradient, local, w.project, local_gradient, partial, width,
            starts[6], *ends, eps,
            **plan.shape_of_gradients(64, 4), SPLITS=splits, DOT=dot, NORM=multiplier is None,
        )  # fmt: skip
        x_gradient = depthwise.gradient_before(local_gradient, table, gradient)
        total = depthwise.add_rows_and_weights(partial, local_gradient, x, plan)
        by_name = dict(zip(
            ("out", "out_bias", "norm", "norm_bias", "after", "after_bias", "project", "project_bias", "depthwise",
             "depthwise_bias"),
            torch.split(total, sizes), strict=True,
        ))  # fmt: skip
        gradients = (by_name[name].view_as(value) for name, value in zip(FHEATWeights._fields, weights, strict=True))
        return x_gradient, multiplier_gradient, None, None, None, None, *gradients
