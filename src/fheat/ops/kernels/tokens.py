"""The three products that the tokens of Light-UNETR enter, by one kernel forward and two backward, in float32."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import tokens
from fheat.ops.kernels.launch import add_rows, padded

_BLOCK = 32
"""Number of tokens of a program."""


def token_products(x: Tensor, query: Tensor, fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x1 Q^T, x2 F^T and x3 G^T, with x1, x2 and x3 the thirds of the columns of x, (rows, 3 T), contiguous.

    `query` is Q, (3 T, T); `fine` and `coarse` are F and G, (H, T).
    """
    weights = (weight.contiguous() for weight in (query, fine, coarse))
    out: tuple[Tensor, Tensor, Tensor] = _TokenProducts.apply(x, *weights)  # type: ignore[no-untyped-call]
    return out


class _TokenProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, query: Tensor, fine: Tensor, coarse: Tensor) -> tuple[Tensor, ...]:
        weights = query, fine, coarse
        out = tuple(torch.empty(len(x), len(weight), device=x.device) for weight in weights)
        grid, shape = _launch(x, fine)
        tokens.token_products[grid](x, *weights, *out, len(x), **shape)
        ctx.save_for_backward(x, *weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        grid, shape = _launch(x, weights[1])
        arriving = [gradient.contiguous() for gradient in gradients]
        sizes = [weight.numel() for weight in weights]
        gradient, partial = torch.empty_like(x), torch.empty(*grid, sum(sizes), device=x.device)
        tokens.token_products_back[grid](x, *weights, *arriving, gradient, partial, len(x), **shape)
        shares = torch.split(add_rows(partial), sizes)
        return gradient, *(share.view_as(weight) for share, weight in zip(shares, weights, strict=True))


def _launch(x: Tensor, narrow: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """Return the launch grid and the constants for which the kernels are compiled."""
    half, third = narrow.shape
    widths = {"TP": padded(third), "QP": padded(3 * third), "HP": padded(half)}
    return (-(-len(x) // _BLOCK),), {"T": third, "H": half, **widths, "BLOCK": _BLOCK, "num_warps": 4}
