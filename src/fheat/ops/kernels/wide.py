"""The halves of an FHEAT block with many channels: products by the library, all between them by fused kernels.

They compute what `fheat_half` and `mixer_half` do, where matrices are too large for the registers of one program, or
fill them. A product with a bias is one of operands with a column of ones, see `fheat.ops.kernels.device.wide`. Operands
and results of products have the type of autocast, as in the plain twin; other tensors are (N, X, Y, Z, C), float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels import depthwise, transform
from fheat.ops.kernels.device import norm, wide
from fheat.ops.kernels.fheat import FHEATWeights, Mixed
from fheat.ops.kernels.launch import TYPES, Tiling, add_rows, operand_type, pairs, partials, power_of_two, tiling
from fheat.ops.kernels.mixer import MixerWeights
from fheat.ops.kernels.norm import sums_for_gradient

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
        w, plan = FHEATWeights(*weights), _plan(x)
        ends, tiles, normed = _constants(plan)
        project, out = _operand_of(w.project, w.project_bias, dtype), _operand_of(w.out, w.out_bias, dtype)
        local, gated = _operand(x, dtype), _operand(x, dtype)
        wide.write_operand[plan.grid](depthwise.biased(x, table, w.depthwise_bias), local, *ends, **tiles)
        v, g = (torch.mm(local, half.t()).view(x.shape) for half in project.chunk(2))
        t, spectrum = v, None
        if multiplier is not None:
            t, spectrum = transform.filtered(v, multiplier, closed, keep_spectrum=ctx.needs_input_grad[1])
        moments = _moments(t, plan)
        wide.write_gated[plan.grid](t, moments, w.norm, w.norm_bias, g, gated, *ends, eps, **tiles | normed)
        y = torch.mm(gated, out.t()).view(x.shape)
        y_moments = _moments(y, plan)
        after, after_moments = _added(x, y, y_moments, w.after, w.after_bias, eps, plan)
        saved = x, table, multiplier, closed, local, t, g, gated, y, spectrum, moments, y_moments, project, out
        ctx.save_for_backward(*saved, *weights)
        ctx.plan, ctx.eps = plan, eps
        ctx.mark_non_differentiable(after_moments, y)
        return after, after_moments, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, table, multiplier, closed, local, t, g, gated, y, spectrum, moments, y_moments, project, out = (
            ctx.saved_tensors[:14]
        )
        w, plan, eps = FHEATWeights(*ctx.saved_tensors[14:]), ctx.plan, ctx.eps
        ends, _tiles, normed = _constants(plan)
        c, gradient = plan.channels, gradient.contiguous()
        partial, sums = partials(plan, 4 * c, x), pairs(plan, x)
        y_gradient = _gradient_before_norm(gradient, y, y_moments, w.after, partial, 2 * c, eps, plan)
        inner = torch.mm(y_gradient, out[:, :c])
        normal_gradient, both = torch.empty_like(x), torch.empty(len(local), 2 * c, device=x.device, dtype=y.dtype)
        wide.gated_slopes[plan.grid](
            inner, t, moments, w.norm, w.norm_bias, g, normal_gradient, both, sums, partial, 4 * c, *ends, eps,
            **plan.shape | normed,
        )  # fmt: skip
        value_gradient, multiplier_gradient = torch.empty_like(x), None
        norm.norm_gradient[plan.grid](
            normal_gradient, normal_gradient, t, moments, sums, w.norm, value_gradient, *ends, eps,
            **plan.shape, SPLITS=plan.splits, ADD=False,
        )  # fmt: skip
        if multiplier is not None:
            learned = ctx.needs_input_grad[1]
            value_gradient, behind = transform.filtered(value_gradient, multiplier, closed, keep_spectrum=learned)
            multiplier_gradient = (behind * spectrum).sum(dim=(0, 4)) if learned else None
        both[:, :c] = value_gradient.view(-1, c)
        local_gradient = torch.mm(both, project[:, :c]).view(x.shape)
        x_gradient = depthwise.gradient_before(local_gradient, table, gradient)
        scale, shift, after, after_shift = torch.split(add_rows(partial), c)
        convolution, convolution_bias = torch.split(depthwise.gradient_of_weights(local_gradient, x), [27 * c, c])
        by_name = {
            "depthwise": convolution, "depthwise_bias": convolution_bias, "norm": scale, "norm_bias": shift,
            "after": after, "after_bias": after_shift,
        }  # fmt: skip
        by_name["project"], by_name["project_bias"] = _of_weights(both, local, c)
        by_name["out"], by_name["out_bias"] = _of_weights(y_gradient, gated, c)
        gradients = (by_name[name].view_as(value) for name, value in zip(FHEATWeights._fields, w, strict=True))
        return x_gradient, multiplier_gradient, None, None, None, None, *gradients


class _MixerHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, moments: Tensor, eps: float, dtype: torch.dtype, *weights: Tensor) -> Tensor:
        w, plan = MixerWeights(*weights), _plan(x)
        ends, tiles, normed = _constants(plan)
        first, second = _operand_of(w.first, w.first_bias, dtype), _operand_of(w.second, w.second_bias, dtype)
        scaled, active = _operand(x, dtype), _operand(x, dtype)
        wide.write_normal[plan.grid](x, moments, w.norm, w.norm_bias, scaled, *ends, eps, **tiles | normed)
        h = torch.mm(scaled, first.t())
        wide.write_rational[plan.grid](h, w.numerator, w.denominator, active, *ends, **tiles, GROUPS=len(w.denominator))
        y = torch.mm(active, second.t()).view(x.shape)
        y_moments = _moments(y, plan)
        after, _ = _added(x, y, y_moments, w.after, w.after_bias, eps, plan)
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


def _plan(x: Tensor) -> Tiling:
    samples, *grid, channels = x.shape
    return tiling(samples, grid[0] * grid[1] * grid[2], channels)


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


def _moments(x: Tensor, plan: Tiling) -> Tensor:
    moments = pairs(plan, x)
    norm.find_moments[plan.grid](x, moments, plan.voxels, plan.span, **plan.shape, SPLITS=plan.splits)
    return moments


def _added(
    x: Tensor, y: Tensor, moments: Tensor, scale: Tensor, shift: Tensor, eps: float, plan: Tiling
) -> tuple[Tensor, Tensor]:
    """Return x + norm(y) and its moments."""
    out, out_moments = torch.empty_like(x), pairs(plan, x)
    norm.residual_norm[plan.grid](
        x, y, moments, scale, shift, out, out_moments, plan.voxels, plan.span, eps,
        **plan.shape, SPLITS=plan.splits, ADD=True,
    )  # fmt: skip
    return out, out_moments


def _gradient_before_norm(
    gradient: Tensor, y: Tensor, moments: Tensor, scale: Tensor, partial: Tensor, at: int, eps: float, plan: Tiling
) -> Tensor:
    """Return dL/dy, (rows, C) in the type of y, from dL/dnorm(y), and fill the columns of `partial` from `at` on: the
    gradients of scale and shift."""
    sums, out = pairs(plan, gradient), torch.empty_like(y)
    sums_for_gradient(plan, gradient, y, moments, scale, sums, partial, at, eps)
    norm.norm_gradient[plan.grid](
        gradient, gradient, y, moments, sums, scale, out, plan.voxels, plan.span, eps,
        **plan.shape, SPLITS=plan.splits, ADD=False,
    )  # fmt: skip
    return out.view(-1, plan.channels)
