"""A gated channel mixer with its residual, by one kernel forward and three backward. Tensors are (rows, C), float32."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import gated
from fheat.ops.kernels.launch import add_rows, operand_type, padded

_WIDTH = 32
"""Number of hidden channels that are worked on at a time."""
_ENOUGH = 128
"""Number of programs that occupy a GPU; smaller tiles are taken until there are as many."""
_MOST_PARTS = 64
"""Largest number of parts of the rows whose shares of the gradients of the weights are added up."""


def gated_mix(x: Tensor, value: Tensor, gating: Tensor, recover: Tensor) -> Tensor:
    """Return x + (a * sigmoid(g)) R^T with a = x A^T and g = x G^T, for `value` A and `gating` G, (H, C), and `recover`
    R, (C, H)."""
    weights = (weight.contiguous() for weight in (value, gating, recover))
    out: Tensor = _GatedMix.apply(x, *weights, operand_type(x))  # type: ignore[no-untyped-call]
    return out


class _GatedMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, gating: Tensor, recover: Tensor, dot: str) -> Tensor:
        out, shape = torch.empty_like(x), _shape(x, value)
        gated.gated_mix[(-(-len(x) // shape["BLOCK"]),)](x, value, gating, recover, out, len(x), **shape, DOT=dot)
        ctx.save_for_backward(x, value, gating, recover)
        ctx.dot = dot
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows, shape = len(x), _shape(x, weights[0])
        tiles = -(-rows // shape["BLOCK"])
        output_gradient, gradient = output_gradient.contiguous(), torch.empty_like(x)
        gated.gated_mix_back[(tiles,)](x, *weights, output_gradient, gradient, rows, **shape, DOT=ctx.dot)
        if not any(ctx.needs_input_grad[1:]):
            return gradient, None, None, None, None
        span = -(-tiles // _MOST_PARTS) * shape["BLOCK"]
        parts = -(-rows // span)
        partial = torch.empty(parts, 3 * weights[0].numel(), device=x.device)
        gated.gated_mix_weights[(parts, -(-len(weights[0]) // _WIDTH))](
            x, *weights, output_gradient, partial, rows, span, **shape, DOT=ctx.dot
        )
        shares = add_rows(partial).chunk(3)
        return gradient, *(share.view_as(weight) for share, weight in zip(shares, weights, strict=True)), None


def _shape(x: Tensor, value: Tensor) -> dict[str, int]:
    """Return the constants for which the kernels are compiled."""
    rows, channels = x.shape
    block = 32 if rows >= 32 * _ENOUGH else 16  # products of 64 rows came out wrong on an H200
    return {
        "C": channels,
        "CP": padded(channels),
        "H": len(value),
        "WIDTH": _WIDTH,
        "BLOCK": block,
        "num_warps": 4,
        "num_stages": 1,
    }
