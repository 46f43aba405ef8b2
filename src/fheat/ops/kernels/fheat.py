"""x + norm(FHEAT(x)) by fused kernels: the first half of an FHEAT block.

    [v, g] = W_p(DWConv3(x)),    y = W_out( SiLU(g) * norm(T(v)) )

The plain twin is `fheat.nn.blocks.FHEATBlock`. Tensors are (N, X, Y, Z, C), float32, contiguous. The steps before T and
behind it are functions of their own, which `fheat.ops.kernels.operator_half` uses too.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fheat.ops.kernels import depthwise, transform
from fheat.ops.kernels.device import fheat
from fheat.ops.kernels.first_gradient import first_gradient
from fheat.ops.kernels.launch import Tiling, operand_type, pairs, partials, plan_of
from fheat.ops.kernels.norm import added, gradient_before, moments_of, sums_for_gradient


class BehindWeights(NamedTuple):
    """Parameters of an FHEAT behind T and of the norm behind it, in the shapes of their modules."""

    norm: Tensor
    norm_bias: Tensor
    out: Tensor
    out_bias: Tensor
    after: Tensor
    after_bias: Tensor


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

    @property
    def behind(self) -> BehindWeights:
        """The parameters behind T; the first four of the tuple are those before it."""
        return BehindWeights(*self[4:])


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


def project(local: Tensor, weight: Tensor, bias: Tensor, plan: Tiling, dot: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return v, g and the moments of v, where [v, g] = W local + bias."""
    v, g, moments = torch.empty_like(local), torch.empty_like(local), pairs(plan, local)
    fheat.project_forward[plan.grid](
        local, weight, bias, v, g, moments, plan.voxels, plan.span, **plan.shape, SPLITS=plan.splits, DOT=dot
    )
    return v, g, moments


def gate(
    t: Tensor, moments: Tensor, g: Tensor, w: BehindWeights, eps: float, plan: Tiling, dot: str
) -> tuple[Tensor, Tensor]:
    """Return y = W_out(SiLU(g) norm(t)) and its moments, given those of t."""
    y, y_moments = torch.empty_like(t), pairs(plan, t)
    fheat.gated_forward[plan.grid](
        t, moments, w.norm, w.norm_bias, g, w.out, w.out_bias, y, y_moments, plan.voxels, plan.span, eps,
        **plan.shape, SPLITS=plan.splits, DOT=dot,
    )  # fmt: skip
    return y, y_moments


def behind_sizes(channels: int) -> list[int]:
    """Return how many columns of `gate_back` belong to out, out_bias, norm, norm_bias, after and after_bias."""
    return [channels * channels, *[channels] * 5]


class GateGradients(NamedTuple):
    """dL/dnorm(t), dL/dg, and the sums that dL/dt needs from dL/dnorm(t)."""

    normal: Tensor
    gate: Tensor
    sums: Tensor


def gate_back(
    gradient: Tensor,
    y: tuple[Tensor, Tensor],
    t: tuple[Tensor, Tensor],
    g: Tensor,
    w: BehindWeights,
    partial: Tensor,
    eps: float,
    plan: Tiling,
    dot: str,
) -> GateGradients:
    """Return the gradients of `gate` from that of norm(y), and begin each row of `partial` with those of parameters.

    `y` and `t` have their moments with them; `behind_sizes` says which columns of `partial` are filled.
    """
    normal_gradient, gate_gradient = torch.empty_like(g), torch.empty_like(g)
    y_sums, sums = pairs(plan, g), pairs(plan, g)
    sums_for_gradient(plan, gradient, *y, w.after, y_sums, partial, sum(behind_sizes(plan.channels)[:4]), eps)
    fheat.gated_backward[plan.grid](
        gradient, *y, y_sums, w.after, *t, w.norm, w.norm_bias, g, w.out, normal_gradient, gate_gradient, sums, partial,
        partial.shape[1], plan.voxels, plan.span, eps,
        **plan.shape_of_gradients(64, 8), SPLITS=plan.splits, DOT=dot,
    )  # fmt: skip
    return GateGradients(normal_gradient, gate_gradient, sums)


def project_back(
    value_gradient: Tensor,
    gate_gradient: Tensor,
    local: Tensor,
    weight: Tensor,
    partial: Tensor,
    at: int,
    plan: Tiling,
    dot: str,
    norm: tuple[Tensor, Tensor, Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Return dL/dlocal of `project` from dL/dv and dL/dg, and fill the columns of `partial` from `at` on: W and bias.

    With `norm`, which is v, its moments, the sums of its gradient, the scale and eps of the norm that follows,
    `value_gradient` is dL/dnorm(v), and the kernel computes dL/dv itself.
    """
    out = torch.empty_like(local)
    *normed, eps = norm or (local, local, local, local, 0.0)  # which are not read
    fheat.project_backward[plan.grid](
        value_gradient, *normed, gate_gradient, local, weight, out, partial, partial.shape[1], at,
        plan.voxels, plan.span, eps,
        **plan.shape_of_gradients(64, 4), SPLITS=plan.splits, DOT=dot, NORM=norm is not None,
    )  # fmt: skip
    return out


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
        w, plan = FHEATWeights(*weights), plan_of(x)
        local = depthwise.biased(x, table, w.depthwise_bias)
        v, g, moments = project(local, w.project, w.project_bias, plan, dot)
        t, spectrum = v, None
        if multiplier is not None:
            t, spectrum = transform.filtered(v, multiplier, closed, keep_spectrum=ctx.needs_input_grad[1])
            # A closed gate uses the moments of v as if there were no gate: another order of sums changes the last bit.
            moments = moments_of(t, plan, closed, moments)
        y, y_moments = gate(t, moments, g, w.behind, eps, plan, dot)
        after, after_moments = added(x, y, y_moments, w.after, w.after_bias, eps, plan)
        ctx.save_for_backward(x, local, table, multiplier, closed, t, g, y, spectrum, moments, y_moments, *weights)
        ctx.plan, ctx.eps, ctx.dot = plan, eps, dot
        ctx.mark_non_differentiable(after_moments, y)
        ctx.set_materialize_grads(False)
        return after, after_moments, y

    @staticmethod
    @first_gradient
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, local, table, multiplier, closed, t, g, y, spectrum, moments, y_moments, *weights = ctx.saved_tensors
        w, plan, eps, dot = FHEATWeights(*weights), ctx.plan, ctx.eps, ctx.dot
        c, gradient = plan.channels, gradient.contiguous()
        sizes = [*behind_sizes(c), 2 * c * c, 2 * c, 27 * c, c]
        partial = partials(plan, sum(sizes), x)
        slopes = gate_back(gradient, (y, y_moments), (t, moments), g, w.behind, partial, eps, plan, dot)
        # Without a transform, `project_back` computes the gradient of the norm before it itself.
        norm, value_gradient, multiplier_gradient = (t, moments, slopes.sums, w.norm, eps), slopes.normal, None
        if multiplier is not None:
            learned = ctx.needs_input_grad[1]
            value_gradient = gradient_before(slopes.normal, t, moments, slopes.sums, w.norm, eps, plan)
            value_gradient, behind = transform.filtered(value_gradient, multiplier, closed, keep_spectrum=learned)
            multiplier_gradient = (behind * spectrum).sum(dim=(0, 4)) if learned else None
        local_gradient = project_back(
            value_gradient, slopes.gate, local, w.project, partial, sum(sizes[:6]), plan, dot,
            norm if multiplier is None else None,
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
