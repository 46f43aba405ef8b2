"""x + norm(FHEAT(x)) with any operator T in the middle: fused kernels before it and behind it, T as a module.

    [v, g] = W_p(DWConv3(x)),    t = T(v),    x + norm( W_out( SiLU(g) * norm(t) ) )

The plain twin is `fheat.nn.blocks.FHEATBlock`. Tensors are (N, X, Y, Z, C), float32, contiguous; T gets and returns
(N, C, X, Y, Z). The kernels are those of `fheat_half` and `wide_fheat_half`, cut in two where T stands: autograd passes
through T as through any module, and each call of T is one call of the module, in the order of the plain twin. Identity
case: where T returns its input, the result is that of `fheat_half` without a gate, but for the order of sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels import depthwise, fheat, wide
from fheat.ops.kernels.fheat import BehindWeights, FHEATWeights, Mixed
from fheat.ops.kernels.first_gradient import first_gradient
from fheat.ops.kernels.launch import TYPES, add_rows, operand_type, partials, plan_of
from fheat.ops.kernels.norm import added, gradient_before, moments_of

Operator = Callable[[Tensor], Tensor]
"""T: (N, C, X, Y, Z) -> the same, or what can be expanded to it."""


def operator_half(x: Tensor, operator: Operator, weights: FHEATWeights, table: Tensor, eps: float = 1e-5) -> Mixed:
    """Return x + norm(FHEAT(x)), as `fheat_half` does, with an operator in the place of the gate."""
    dot = operand_type(x)
    v, g, beside = _Before.apply(x, table, dot, *weights[:4])  # type: ignore[no-untyped-call]
    return Mixed(*_Behind.apply(beside, _mixed(operator, v), g, eps, dot, *weights.behind))  # type: ignore[no-untyped-call]


def wide_operator_half(x: Tensor, operator: Operator, weights: FHEATWeights, table: Tensor, eps: float = 1e-5) -> Mixed:
    """Return x + norm(FHEAT(x)), as `wide_fheat_half` does, with an operator in the place of the gate."""
    dtype = TYPES[operand_type(x)]
    v, g, beside = _WideBefore.apply(x, table, dtype, *weights[:4])  # type: ignore[no-untyped-call]
    rest = eps, dtype, *weights.behind
    return Mixed(*_WideBehind.apply(beside, _mixed(operator, v), g, *rest))  # type: ignore[no-untyped-call]


def _mixed(operator: Operator, v: Tensor) -> Tensor:
    """Return T(v) of (N, X, Y, Z, C), float32 and contiguous. T sees float32 whatever the type of products is."""
    values = v.float().movedim(-1, 1)
    return operator(values).float().expand(values.shape).movedim(1, -1).contiguous()


class _Before(torch.autograd.Function):
    """v and g from x, and x itself: what flows back to the three is added up in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, dot: str, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, shift, weight, bias = weights
        plan, local = plan_of(x), depthwise.biased(x, table, shift)
        v, g, _moments = fheat.project(local, weight, bias, plan, dot)
        ctx.save_for_backward(x, table, local, *weights)
        ctx.plan, ctx.dot = plan, dot
        return v, g, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v_gradient: Tensor, g_gradient: Tensor, beside: Tensor) -> tuple[Tensor | None, ...]:
        x, table, local, *weights = ctx.saved_tensors
        plan, c = ctx.plan, ctx.plan.channels
        sizes = [2 * c * c, 2 * c, 27 * c, c]
        partial = partials(plan, sum(sizes), x)
        local_gradient = fheat.project_back(
            v_gradient.contiguous(), g_gradient.contiguous(), local, weights[2], partial, 0, plan, ctx.dot
        )
        x_gradient = depthwise.gradient_before(local_gradient, table, beside.contiguous())
        total = depthwise.add_rows_and_weights(partial, local_gradient, x, plan)
        project, project_bias, convolution, convolution_bias = torch.split(total, sizes)
        gradients = convolution, convolution_bias, project, project_bias
        return x_gradient, None, None, *(one.view_as(value) for one, value in zip(gradients, weights, strict=True))


class _Behind(torch.autograd.Function):
    """x + norm(W_out(SiLU(g) norm(t))), its moments, and the output of W_out; the last two have no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, t: Tensor, g: Tensor, eps: float, dot: str, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        w, plan = BehindWeights(*weights), plan_of(x)
        moments = moments_of(t, plan)
        y, y_moments = fheat.gate(t, moments, g, w, eps, plan, dot)
        after, after_moments = added(x, y, y_moments, w.after, w.after_bias, eps, plan)
        ctx.save_for_backward(t, moments, g, y, y_moments, *weights)
        ctx.plan, ctx.eps, ctx.dot = plan, eps, dot
        ctx.mark_non_differentiable(after_moments, y)
        ctx.set_materialize_grads(False)
        return after, after_moments, y

    @staticmethod
    @first_gradient
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        t, moments, g, y, y_moments, *weights = ctx.saved_tensors
        w, plan, eps, gradient = BehindWeights(*weights), ctx.plan, ctx.eps, gradient.contiguous()
        sizes = fheat.behind_sizes(plan.channels)
        partial = partials(plan, sum(sizes), t)
        slopes = fheat.gate_back(gradient, (y, y_moments), (t, moments), g, w, partial, eps, plan, ctx.dot)
        t_gradient = gradient_before(slopes.normal, t, moments, slopes.sums, w.norm, eps, plan)
        out, out_bias, scale, shift, after, after_shift = torch.split(add_rows(partial), sizes)
        of_weights = BehindWeights(scale, shift, out.view_as(w.out), out_bias, after, after_shift)
        return gradient, t_gradient, slopes.gate, None, None, *of_weights


class _WideBefore(torch.autograd.Function):
    """As `_Before`, with products by the library; v and g have their type."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: Tensor, dtype: torch.dtype, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        v, g, *operands = wide.project(x, table, weights, plan_of(x), dtype)
        ctx.save_for_backward(x, table, *operands)
        return v, g, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v_gradient: Tensor, g_gradient: Tensor, beside: Tensor) -> tuple[Tensor | None, ...]:
        x, table, operand, matrix = ctx.saved_tensors
        both = torch.cat([v_gradient, g_gradient], dim=-1).view(len(operand), -1)
        x_gradient, *gradients = wide.project_back(both, operand, matrix, x, table, beside.contiguous())
        return x_gradient, None, None, *gradients


class _WideBehind(torch.autograd.Function):
    """As `_Behind`, with products by the library."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, t: Tensor, g: Tensor, eps: float, dtype: torch.dtype, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        w, plan = BehindWeights(*weights), plan_of(x)
        gated = wide.gate(t, g, w, eps, plan, dtype)
        after, after_moments = added(x, gated.y, gated.y_moments, w.after, w.after_bias, eps, plan)
        ctx.save_for_backward(t, g, *gated, *weights)
        ctx.plan, ctx.eps = plan, eps
        ctx.mark_non_differentiable(after_moments, gated.y)
        ctx.set_materialize_grads(False)
        return after, after_moments, gated.y

    @staticmethod
    @first_gradient
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        t, g, *rest = ctx.saved_tensors
        gated, w, gradient = wide.Gated(*rest[:5]), BehindWeights(*rest[5:]), gradient.contiguous()
        t_gradient, both, of_weights = wide.gate_back(gradient, gated, t, g, w, ctx.eps, ctx.plan)
        g_gradient = both[:, ctx.plan.channels :].view(g.shape)
        return gradient, t_gradient, g_gradient, None, None, *of_weights
