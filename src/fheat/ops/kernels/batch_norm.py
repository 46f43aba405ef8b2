"""Batch norm in training with a GELU behind it, for few rows, by one kernel forward and one backward."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fheat.ops.kernels.device import batch_norm
from fheat.ops.kernels.launch import power_of_two

_WIDTH = 4
"""Number of channels of a program."""
_MOST_ROWS = 1024
"""Largest number of rows of a tile."""


def norm_gelu(x: Tensor, norm: nn.BatchNorm3d) -> Tensor:
    """Return gelu(norm(x)) of (rows, C), float32 and contiguous, and update the running moments of the norm.

    The norm is in training, has parameters and running moments with a momentum, and there are two rows or more.
    """
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    out: Tensor = _NormGELU.apply(x, norm.weight, norm.bias, *running, norm.eps, norm.momentum)  # type: ignore[no-untyped-call]
    return out


class _NormGELU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor,
        mean: Tensor, variance: Tensor, tracked: Tensor, eps: float, momentum: float,
    ) -> Tensor:  # fmt: skip
        rows, channels = x.shape
        out, moments = torch.empty_like(x), torch.empty(2, channels, device=x.device)
        grid, shape = _launch(rows, channels)
        batch_norm.norm_gelu[grid](
            x, scale, shift, out, moments, mean, variance, tracked, rows, eps, momentum, **shape
        )  # fmt: skip
        ctx.save_for_backward(x, scale, shift, moments)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, shift, moments = ctx.saved_tensors
        rows, channels = x.shape
        gradient, of_parameters = torch.empty_like(x), torch.empty(2, channels, device=x.device)
        grid, shape = _launch(rows, channels)
        batch_norm.norm_gelu_gradient[grid](
            x, scale, shift, moments, output_gradient.contiguous(), gradient, of_parameters, rows, **shape
        )
        return gradient, of_parameters[0], of_parameters[1], None, None, None, None, None


def _launch(rows: int, channels: int) -> tuple[tuple[int], dict[str, int]]:
    """Return the launch grid and the constants for which the kernels are compiled."""
    block = min(_MOST_ROWS, max(16, power_of_two(rows)))
    return (-(-channels // _WIDTH),), {"C": channels, "WIDTH": _WIDTH, "BLOCK": block, "num_warps": 4}
