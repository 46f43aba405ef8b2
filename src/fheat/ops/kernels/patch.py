"""A convolution between voxels and patches, a one-group norm and squeeze-excitation, by one product and fused kernels.

The plain twins are `fheat.nn.layers.Down` and `Up`. Tensors are (N, X, Y, Z, C), float32, contiguous. Operands of the
product are rounded to the type of autocast, and so is the product; all that follows is float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import excite
from fheat.ops.kernels.launch import Tiling, add_rows, operand_type, pairs, partials, power_of_two, tiling

_MOST = 64
"""Largest number of programs of a sample: each reads the sums of all others."""
_ROWS = 32
"""Number of programs whose sums are read at once."""
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PatchWeights(NamedTuple):
    """Parameters of the convolution, of the norm and of squeeze-excitation, in the shapes of their modules."""

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor
    squeeze: Tensor
    excite: Tensor


def down(x: Tensor, weights: PatchWeights, eps: float) -> Tensor:
    """Return the excited norm of the convolution that turns each patch into a voxel.

    Shapes: (N, X, Y, Z, in) -> (N, X / side, Y / side, Z / side, out).
    """
    out: Tensor = _Patch.apply(x, None, eps, False, *weights)  # type: ignore[no-untyped-call]
    return out


def up(x: Tensor, skip: Tensor | None, weights: PatchWeights, eps: float) -> Tensor:
    """Return the excited norm of the convolution that turns each voxel into a patch, plus `skip` if there is one.

    Shapes: (N, X, Y, Z, in) -> (N, side X, side Y, side Z, out), which is the shape of `skip` too.
    """
    out: Tensor = _Patch.apply(x, skip, eps, True, *weights)  # type: ignore[no-untyped-call]
    return out


class _Patch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, skip: Tensor | None, eps: float, upwards: bool, *tensors: Tensor) -> Tensor:
        weight, bias, scale, shift, squeeze, excitation = tensors
        side, kind = weight.shape[-1], operand(x)
        channels, width = scale.numel(), x.shape[-1] * (1 if upwards else side**3)
        rows = packed(x if upwards else patches(x, side), kind).view(-1, width)
        matrix = packed(_by_taps(weight, upwards), kind).view(-1, width)
        grid = [side * length if upwards else length // side for length in x.shape[1:4]]
        z = rows @ matrix.t()
        plan = tiling(len(x), grid[0] * grid[1] * grid[2], channels, _MOST)
        out = torch.empty(len(x), *grid, channels, device=x.device)
        moments, sums = pairs(plan, x), partials(plan, channels, x)
        ends = plan.voxels, plan.span
        excite.excite_moments[plan.grid](z, bias, moments, sums, *ends, **plan.shape, SPLITS=plan.splits)
        excite.excite_forward[plan.grid](
            z, bias, moments, sums, scale, shift, squeeze, excitation, out if skip is None else skip, out,
            *ends, *x.shape[2:4], eps, **plan.shape, **_constants(plan, squeeze), SIDE=side if upwards else 1,
            ADD=skip is not None,
        )  # fmt: skip
        ctx.save_for_backward(rows, matrix, z, moments, sums, *tensors)
        ctx.plan, ctx.eps, ctx.upwards, ctx.x = plan, eps, upwards, (x.shape, x.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, matrix, z, moments, sums, weight, bias, scale, shift, squeeze, excitation = ctx.saved_tensors
        plan, eps, upwards = ctx.plan, ctx.eps, ctx.upwards
        side, hidden, channels = weight.shape[-1], len(squeeze), plan.channels
        gradient = gradient.contiguous()
        shares = partials(plan, 2 * channels, z)
        partial = torch.empty(plan.samples, (3 + 2 * hidden) * channels, device=z.device)
        z_gradient = torch.empty_like(z)
        ends = plan.voxels, plan.span, *ctx.x[0][2:4], eps
        shape = {**plan.shape, "SIDE": side if upwards else 1}
        excite.excite_sums[plan.grid](gradient, z, bias, moments, shares, *ends, **shape, SPLITS=plan.splits)
        excite.excite_gradient[plan.grid](
            gradient, z, bias, moments, sums, shares, scale, shift, squeeze, excitation, z_gradient, partial, *ends,
            **shape, **_constants(plan, squeeze),
        )  # fmt: skip
        sizes = [channels, channels, channels, hidden * channels, hidden * channels]
        scales, shifts, biases, squeezes, excites = torch.split(add_rows(partial), sizes)
        weight_gradient, x_gradient = torch.empty_like(weight), torch.empty(ctx.x[0], dtype=ctx.x[1], device=z.device)
        taps = _by_taps(weight_gradient, upwards)
        taps.copy_((z_gradient.t() @ rows).view(taps.shape))
        cells = x_gradient if upwards else patches(x_gradient, side)
        cells.copy_((z_gradient @ matrix).view(cells.shape))
        return (
            x_gradient, gradient if ctx.needs_input_grad[1] else None, None, None,
            weight_gradient, biases, scales, shifts, squeezes.view_as(squeeze), excites.view_as(excitation),
        )  # fmt: skip


def patches(x: Tensor, side: int) -> Tensor:
    """Return (N, X / side, Y / side, Z / side, side, side, side, C), a view of a contiguous (N, X, Y, Z, C)."""
    samples, *grid, channels = x.shape
    a, b, c = (length // side for length in grid)
    return x.view(samples, a, side, b, side, c, side, channels).permute(0, 1, 3, 5, 2, 4, 6, 7)


def operand(x: Tensor) -> torch.dtype:
    """Return the type of the operands of a product of x: that of autocast, or its own."""
    return _TYPES.get(operand_type(x), x.dtype)


def packed(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return x in a type, contiguous, by one copy at most."""
    return x.to(kind, memory_format=torch.contiguous_format).contiguous()


def _by_taps(weight: Tensor, upwards: bool) -> Tensor:
    """Return the weights in the order of the product's operands: (taps, out, in) upwards, else (out, taps, in)."""
    return weight.permute(2, 3, 4, 1, 0) if upwards else weight.permute(0, 2, 3, 4, 1)


def _constants(plan: Tiling, squeeze: Tensor) -> dict[str, int]:
    return {
        "SPLITS": plan.splits,
        "R": len(squeeze),
        "RP": max(2, power_of_two(len(squeeze))),
        "ROWS": min(_ROWS, plan.splits),
    }
