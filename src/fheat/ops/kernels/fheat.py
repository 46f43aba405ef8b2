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
from fheat.ops.kernels.sums import add_rows


class FHEATWeights(NamedTuple):
    """Parameters of one FHEAT and the norm behind it, as their modules hold them."""

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
    """The new features, their moments for the norm that comes next, and FHEAT's own output."""

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
    """Return x + norm(FHEAT(x)); `gate` is the multiplier (X, Y, Z) and the flag "closed", or None: no transform.

    `table` is that of the depthwise weights.
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
        shape, splits = plan.shape, plan.splits
        local = depthwise.biased(x, table, w.depthwise_bias)
        v, g, y, after = (torch.empty_like(x) for _ in range(4))
        moments, y_moments, after_moments = (pairs(plan, x) for _ in range(3))
        fheat.project_forward[plan.grid](
            local, w.project, w.project_bias, v, g, moments, plan.voxels, plan.span, **shape, SPLITS=splits, DOT=dot
        )  # fmt: skip
        t, spectrum = v, None
        if multiplier is not None:
            t, spectrum = transform.filtered(v, multiplier, closed, keep_spectrum=ctx.needs_input_grad[1])
            found = pairs(plan, x)
            norm.find_moments[plan.grid](t, found, plan.voxels, plan.span, **shape, SPLITS=splits)
            # As if there were no gate where it is closed: another order of the sums would be another last bit.
            moments = found if closed is None else torch.where(closed, moments, found)
        fheat.gated_forward[plan.grid](
            t, moments, w.norm, w.norm_bias, g, w.out, w.out_bias, y, y_moments, plan.voxels, plan.span, eps,
            **shape, SPLITS=splits, DOT=dot,
        )  # fmt: skip
        norm.residual_norm[plan.grid](
            x, y, y_moments, w.after, w.after_bias, after, after_moments, plan.voxels, plan.span, eps,
            **shape, SPLITS=splits, ADD=True,
        )  # fmt: skip
        ctx.save_for_backward(x, local, table, multiplier, closed, t, g, y, spectrum, moments, y_moments, *weights)
        ctx.plan, ctx.eps, ctx.dot = plan, eps, dot
        ctx.mark_non_differentiable(after_moments, y)
        return after, after_moments, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, local, table, multiplier, closed, t, g, y, spectrum, moments, y_moments, *weights = ctx.saved_tensors
        w, plan, eps, dot = FHEATWeights(*weights), ctx.plan, ctx.eps, ctx.dot
        c, shape, splits = plan.channels, plan.shape, plan.splits
        sizes = [c * c, c, c, c, c, c, 2 * c * c, 2 * c, 27 * c, c]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        width = sum(sizes)
        partial = partials(plan, width, x)
        y_sums, sums = pairs(plan, x), pairs(plan, x)
        slope = slope.contiguous()
        normal_slope, gate_slope, value_slope, local_slope = (torch.empty_like(x) for _ in range(4))
        norm.norm_sums[plan.grid](
            slope, y, y_moments, w.after, y_sums, partial, width, starts[4], plan.voxels, plan.span, eps,
            **shape, SPLITS=splits,
        )  # fmt: skip
        fheat.gated_backward[plan.grid](
            slope, y, y_moments, y_sums, w.after, t, moments, w.norm, w.norm_bias, g, w.out, normal_slope, gate_slope,
            sums, partial, width, plan.voxels, plan.span, eps, **shape, SPLITS=splits, DOT=dot,
        )  # fmt: skip
        norm.norm_gradient[plan.grid](
            normal_slope, normal_slope, t, moments, sums, w.norm, value_slope, plan.voxels, plan.span, eps,
            **shape, SPLITS=splits, ADD=False,
        )  # fmt: skip
        multiplier_slope = None
        if multiplier is not None:
            learned = ctx.needs_input_grad[1]
            value_slope, behind = transform.filtered(value_slope, multiplier, closed, keep_spectrum=learned)
            multiplier_slope = (behind * spectrum).sum(dim=(0, 4)) if learned else None
        fheat.project_backward[plan.grid](
            value_slope, gate_slope, local, w.project, local_slope, partial, width, starts[6], plan.voxels, plan.span,
            **shape, SPLITS=splits, DOT=dot,
        )  # fmt: skip
        x_slope = depthwise.slope_before(local_slope, table, slope)
        depthwise.slope_of_weights(local_slope, x, partial, starts[8], plan, bias=True)
        found = dict(zip(
            ("out", "out_bias", "norm", "norm_bias", "after", "after_bias", "project", "project_bias", "depthwise",
             "depthwise_bias"),
            torch.split(add_rows(partial), sizes), strict=True,
        ))  # fmt: skip
        gradients = (found[name].view_as(value) for name, value in zip(FHEATWeights._fields, weights, strict=True))
        return x_slope, multiplier_slope, None, None, None, None, *gradients
