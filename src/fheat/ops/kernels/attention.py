"""Attention over few tokens by fused kernels: one launch forward, two backward, products in float32.

The plain twin is softmax(q k^T) v, without a scale.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import attention
from fheat.ops.kernels.launch import padded

_BLOCK = 16
"""Number of tokens of a program, the least that products are made of."""


def short_attention(qkv: Tensor) -> Tensor:
    """Return softmax(q k^T) v of each head, (N, T, heads, D), from q, k and v behind each other, (N, T, heads, 3 D)."""
    out: Tensor = _ShortAttention.apply(qkv.contiguous())  # type: ignore[no-untyped-call]
    return out


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        samples, tokens, heads, width = qkv.shape
        out = torch.empty(samples, tokens, heads, width // 3, device=qkv.device)
        lse = torch.empty(samples, heads, tokens, device=qkv.device)
        grid, shape = _launch(qkv)
        attention.attend[grid](qkv, out, lse, tokens, **shape)
        ctx.save_for_backward(qkv, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> Tensor:
        qkv, lse = ctx.saved_tensors
        grid, shape = _launch(qkv)
        gradient, share = torch.empty_like(qkv), torch.empty_like(lse)
        rest = qkv, lse, output_gradient.contiguous(), gradient, share, qkv.shape[1]
        attention.query_gradient[grid](*rest, **shape)
        attention.key_value_gradient[grid](*rest, **shape)
        return gradient


def _launch(qkv: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the launch grid and the constants for which the kernels are compiled."""
    samples, tokens, heads, width = qkv.shape
    size = width // 3
    widths = {"DP": padded(size), "TP": padded(tokens)}
    return (samples, heads, -(-tokens // _BLOCK)), {"H": heads, "D": size, **widths, "BLOCK": _BLOCK, "num_warps": 4}
