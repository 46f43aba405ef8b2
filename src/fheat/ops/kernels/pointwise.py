"""1x1x1 convolutions from one channel, or to few, by fused kernels. Inputs are (N, X, Y, Z, C), float32, contiguous."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import pointwise
from fheat.ops.kernels.launch import add_rows, partials, tile_each, tiling


def narrowed(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return W x + b in every voxel, (N, X, Y, Z, out) of a given type, from float32 sums; `weight` is (out, C).

    A program keeps a tile of sums for each output, so these must be few.
    """
    out: Tensor = _Narrowed.apply(x, weight, bias, dtype)  # type: ignore[no-untyped-call]
    return out


def outer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x w + b in every voxel, (N, X, Y, Z, out); x has one channel and gets no gradient, `weight` is (out)."""
    out: Tensor = _Outer.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Narrowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        *grid, channels = x.shape
        (parts, _), shape = tile_each(1, x.numel() // channels, channels)
        out = torch.empty(*grid, len(weight), device=x.device, dtype=dtype)
        pointwise.narrow[(parts,)](x, weight, bias, out, x.numel() // channels, **shape, N=len(weight))
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        channels = x.shape[-1]
        plan = tiling(1, x.numel() // channels, channels)
        partial, inward = partials(plan, weight.numel() + len(weight), x), torch.empty_like(x)
        pointwise.narrow_gradients[(plan.splits,)](
            gradient.contiguous(), x, weight, inward, partial, plan.voxels, plan.span, **plan.shape, N=len(weight)
        )
        weights, bias = torch.split(add_rows(partial), [weight.numel(), len(weight)])
        return inward, weights.view_as(weight), bias, None


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        channels = len(weight)
        (parts, _), shape = tile_each(1, x.numel(), channels)
        out = torch.empty(*x.shape[:-1], channels, device=x.device)
        pointwise.outer[(parts,)](x, weight, bias, out, x.numel(), **shape)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        channels = gradient.shape[-1]
        plan = tiling(1, x.numel(), channels)
        partial = partials(plan, 2 * channels, x)
        pointwise.outer_gradients[(plan.splits,)](
            gradient.contiguous(), x, partial, plan.voxels, plan.span, **plan.shape
        )
        return None, *torch.split(add_rows(partial), channels)
