"""The halves of an FHEAT block with many channels: products by the library, all between them by fused kernels.

They compute what `fheat_half` and `mixer_half` do, where matrices are too large for one program, or fill its registers.
A product with a bias is one of operands with a column of ones, see `fheat.ops.kernels.device.wide`. Operands and
results of products have the type of autocast, as in the plain twin; other tensors are (N, X, Y, Z, C), float32. The
steps before T and behind it are functions of their own, which `fheat.ops.kernels.operator_half` uses too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels import depthwise, transform
from fheat.ops.kernels.device import norm, wide
from fheat.ops.kernels.fheat import BehindWeights, FHEATWeights, Mixed
from fheat.ops.kernels.first_gradient import first_gradient
from fheat.ops.kernels.launch import TYPES, Tiling, add_rows, operand_type, pairs, partials, plan_of, power_of_two
from fheat.ops.kernels.mixer import MixerWeights
from fheat.ops.kernels.norm import added, gradient_before, moments_of, sums_for_gradient

_ELEMENTS = 1024
"""Number of elements of a program of `write_weights`."""


def wide_fheat_half(
    x: Tensor,
    gate: tuple[Tensor, Tensor | None] | None,
    weights: FHEATWeights,
    table: Tensor,
    eps: float = 1e-5,
) -> Mixed:
    """Return x + norm(FHEAT(x)), as `fheat_half` does."""
    multiplier, closed = gate or (None, None)
    rest = eps, TYPES[operand_type(x)], *weights
    return Mixed(*_FHEATHalf.apply(x, multiplier, closed, table, *rest))  # type: ignore[no-untyped-call]


def wide_mixer_half(x: Tensor, moments: Tensor, weights: MixerWeights, eps: float = 1e-5) -> Tensor:
    """Return x + norm(KAN3D(x)), given the moments of x, as `mixer_half` does."""
    dtype = TYPES[operand_type(x)]
    out: Tensor = _MixerHalf.apply(x, moments, eps, dtype, *weights)  # type: ignore[no-untyped-call]
    return out


def project(
    x: Tensor, table: Tensor, w: Sequence[Tensor], plan: Tiling, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return v and g, [v, g] = W_p(DWConv3(x)), and the operands of DWConv3(x) and W_p; `w` are the four parameters."""
    _, shift, weight, bias = w
    ends, tiles, _ = _constants(plan)
    matrix, operand = _operand_of(weight, bias, dtype), _operand(x, dtype)
    wide.write_operand[plan.grid](depthwise.biased(x, table, shift), operand, *ends, **tiles)
    v, g = (torch.mm(operand, half.t()).view(x.shape) for half in matrix.chunk(2))
    return v, g, operand, matrix


def project_back(
    both: Tensor, operand: Tensor, matrix: Tensor, x: Tensor, table: Tensor, add: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return `add` plus the gradient of x, and those of depthwise weights and bias and of projection weights and bias.

    `both` is dL/d[v, g] of `project`, (rows, 2 C) in the type of the operands.
    """
    c = x.shape[-1]
    local_gradient = torch.mm(both, matrix[:, :c]).view(x.shape)
    x_gradient = depthwise.gradient_before(local_gradient, table, add)
    convolution, convolution_bias = torch.split(depthwise.gradient_of_weights(local_gradient, x), [27 * c, c])
    weight, bias = _of_weights(both, operand, c)
    return x_gradient, convolution.view(c, 1, 3, 3, 3), convolution_bias, weight.view(2 * c, c, 1, 1, 1), bias


class Gated(NamedTuple):
    """y = W_out(SiLU(g) norm(t)), its moments, those of t, and the operands of SiLU(g) norm(t) and of the weights."""

    y: Tensor
    y_moments: Tensor
    moments: Tensor
    operand: Tensor
    matrix: Tensor


def gate(t: Tensor, g: Tensor, w: BehindWeights, eps: float, plan: Tiling, dtype: torch.dtype) -> Gated:
    """Return the gated output, and what its gradient needs."""
    ends, tiles, normed = _constants(plan)
    matrix, operand, moments = _operand_of(w.out, w.out_bias, dtype), _operand(t, dtype), moments_of(t, plan)
    wide.write_gated[plan.grid](t, moments, w.norm, w.norm_bias, g, operand, *ends, eps, **tiles | normed)
    y = torch.mm(operand, matrix.t()).view(t.shape)
    return Gated(y, moments_of(y, plan), moments, operand, matrix)


def gate_back(
    gradient: Tensor, gated: Gated, t: Tensor, g: Tensor, w: BehindWeights, eps: float, plan: Tiling
) -> tuple[Tensor, Tensor, BehindWeights]:
    """Return dL/dt, dL/dg in the second half of rows of 2 C, and the gradients of parameters, from dL/dnorm(y)."""
    ends, _tiles, normed = _constants(plan)
    c, partial, sums = plan.channels, partials(plan, 4 * plan.channels, t), pairs(plan, t)
    y_gradient = _gradient_before_norm(gradient, gated.y, gated.y_moments, w.after, partial, 2 * c, eps, plan)
    inner = torch.mm(y_gradient, gated.matrix[:, :c])
    normal_gradient = torch.empty(t.shape, device=t.device)
    both = torch.empty(len(inner), 2 * c, device=t.device, dtype=inner.dtype)
    wide.gated_slopes[plan.grid](
        inner, t, gated.moments, w.norm, w.norm_bias, g, normal_gradient, both, sums, partial, 4 * c, *ends, eps,
        **plan.shape | normed,
    )  # fmt: skip
    t_gradient = gradient_before(normal_gradient, t, gated.moments, sums, w.norm, eps, plan)
    scale, shift, after, after_shift = torch.split(add_rows(partial), c)
    out, out_bias = _of_weights(y_gradient, gated.operand, c)
    return t_gradient, both, BehindWeights(scale, shift, out.view_as(w.out), out_bias, after, after_shift)


class _FHEATHalf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        multiplier: Tensor | None,
        closed: Tensor | None,
        table: Tensor,
        eps: float,
        dtype: torch.dtype,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        w, plan = FHEATWeights(*weights), plan_of(x)
        v, g, *operands = project(x, table, w[:4], plan, dtype)
        t, spectrum = v, None
        if multiplier is not None:
            t, spectrum = transform.filtered(v, multiplier, closed, keep_spectrum=ctx.needs_input_grad[1])
        gated = gate(t, g, w.behind, eps, plan, dtype)
        after, after_moments = added(x, gated.y, gated.y_moments, w.after, w.after_bias, eps, plan)
        ctx.save_for_backward(x, table, multiplier, closed, *operands, t, g, spectrum, *gated, *weights)
        ctx.plan, ctx.eps = plan, eps
        ctx.mark_non_differentiable(after_moments, gated.y)
        ctx.set_materialize_grads(False)
        return after, after_moments, gated.y

    @staticmethod
    @first_gradient
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, table, multiplier, closed, operand, matrix, t, g, spectrum, *rest = ctx.saved_tensors
        gated, w, plan = Gated(*rest[:5]), FHEATWeights(*rest[5:]), ctx.plan
        c, gradient, multiplier_gradient = plan.channels, gradient.contiguous(), None
        value_gradient, both, behind_gradients = gate_back(gradient, gated, t, g, w.behind, ctx.eps, plan)
        if multiplier is not None:
            learned = ctx.needs_input_grad[1]
            value_gradient, behind = transform.filtered(value_gradient, multiplier, closed, keep_spectrum=learned)
            multiplier_gradient = (behind * spectrum).sum(dim=(0, 4)) if learned else None
        both[:, :c] = value_gradient.view(-1, c)
        x_gradient, *before_gradients = project_back(both, operand, matrix, x, table, gradient)
        return x_gradient, multiplier_gradient, None, None, None, None, *before_gradients, *behind_gradients


class _MixerHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, moments: Tensor, eps: float, dtype: torch.dtype, *weights: Tensor) -> Tensor:
        w, plan = MixerWeights(*weights), plan_of(x)
        ends, tiles, normed = _constants(plan)
        first, second = _operand_of(w.first, w.first_bias, dtype), _operand_of(w.second, w.second_bias, dtype)
        scaled, active = _operand(x, dtype), _operand(x, dtype)
        wide.write_normal[plan.grid](x, moments, w.norm, w.norm_bias, scaled, *ends, eps, **tiles | normed)
        h = torch.mm(scaled, first.t())
        wide.write_rational[plan.grid](h, w.numerator, w.denominator, active, *ends, **tiles, GROUPS=len(w.denominator))
        y = torch.mm(active, second.t()).view(x.shape)
        y_moments = moments_of(y, plan)
        after, _ = added(x, y, y_moments, w.after, w.after_bias, eps, plan)
        ctx.save_for_backward(x, moments, scaled, h, active, y, y_moments, first, second, *weights)
        ctx.plan, ctx.eps = plan, eps
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, scaled, h, active, y, y_moments, first, second = ctx.saved_tensors[:9]
        w, plan, eps = MixerWeights(*ctx.saved_tensors[9:]), ctx.plan, ctx.eps
        ends, _tiles, normed = _constants(plan)
        c, gradient, groups = plan.channels, gradient.contiguous(), len(w.denominator)
        sizes = [6, 4 * groups, c, c, c, c]
        width = sum(sizes)
        partial, sums = partials(plan, width, x), pairs(plan, x)
        y_gradient = _gradient_before_norm(gradient, y, y_moments, w.after, partial, width - 2 * c, eps, plan)
        inner, h_gradient = torch.mm(y_gradient, second[:, :c]), torch.empty_like(h)
        wide.rational_slopes[plan.grid](
            inner, h, w.numerator, w.denominator, h_gradient, partial, width, *ends,
            **plan.shape | normed, GROUPS=groups, GP=power_of_two(groups),
        )  # fmt: skip
        normal_gradient, x_gradient = torch.mm(h_gradient, first[:, :c]), torch.empty_like(x)
        sums_for_gradient(plan, normal_gradient, x, moments, w.norm, sums, partial, 6 + 4 * groups, eps)
        norm.norm_gradient[plan.grid](
            gradient, normal_gradient, x, moments, sums, w.norm, x_gradient, *ends, eps,
            **plan.shape, SPLITS=plan.splits, ADD=True,
        )  # fmt: skip
        names = "numerator", "denominator", "norm", "norm_bias", "after", "after_bias"
        by_name = dict(zip(names, torch.split(add_rows(partial), sizes), strict=True))
        by_name["first"], by_name["first_bias"] = _of_weights(h_gradient, scaled, c)
        by_name["second"], by_name["second_bias"] = _of_weights(y_gradient, active, c)
        gradients = (by_name[name].view_as(value) for name, value in zip(MixerWeights._fields, w, strict=True))
        return x_gradient, None, None, None, *gradients


def _constants(plan: Tiling) -> tuple[tuple[int, int], dict[str, int], dict[str, int]]:
    """Return the ends of samples and programs, constants of kernels that write operands, and those for their norms."""
    tiles = {"TILES": plan.span // plan.block}
    return (plan.voxels, plan.span), plan.shape | tiles | {"P": _width(plan.channels)}, {"SPLITS": plan.splits} | tiles


def _width(channels: int) -> int:
    """Return the length of the rows of an operand: there is room for a one, and rows begin at multiples of 16 bytes."""
    return channels // 8 * 8 + 8


def _operand(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.numel() // x.shape[-1], _width(x.shape[-1]), device=x.device, dtype=dtype)


def _operand_of(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [W b 0], (out, P), from a weight (out, C, 1, 1, 1) and a bias (out)."""
    rows, channels = weight.shape[:2]
    out = torch.empty(rows, _width(channels), device=weight.device, dtype=dtype)
    wide.write_weights[(-(-out.numel() // _ELEMENTS),)](
        weight, bias, out, rows, C=channels, P=_width(channels), BLOCK=_ELEMENTS
    )
    return out


def _of_weights(gradient: Tensor, operand: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of a weight, (out, C), and of a bias, (out), from that of a product, (rows, out)."""
    both = torch.mm(gradient.t(), operand).float()
    return both[:, :channels], both[:, channels]


def _gradient_before_norm(
    gradient: Tensor, y: Tensor, moments: Tensor, scale: Tensor, partial: Tensor, at: int, eps: float, plan: Tiling
) -> Tensor:
    """Return dL/dy, (rows, C) in the type of y, from dL/dnorm(y), and fill the columns of `partial` from `at` on: the
    gradients of scale and shift."""
    sums = pairs(plan, gradient)
    sums_for_gradient(plan, gradient, y, moments, scale, sums, partial, at, eps)
    return gradient_before(gradient, y, moments, sums, scale, eps, plan, y.dtype).view(-1, plan.channels)
