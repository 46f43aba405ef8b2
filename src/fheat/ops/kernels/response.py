"""The multiplier of a gate by one kernel, and its gradient by another: in plain PyTorch they are some thirty launches.

    m = exp(-(D r)^alpha),    alpha = 0.3 + 0.6 sigmoid(theta),    D = relu(delta)

The plain twin is `FractionalHeat.response`. Identity case: with delta <= 0 all of m is one, the flag is set, and both
gradients are exactly zero.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.heat import LARGEST_LOG_EXPONENT, log_radius
from fheat.ops.kernels.device import response as device

_BLOCK = 1024
"""Number of modes of a program."""
_BLOCK_OF_SUMS = 4096
"""Number of modes that the one program with the sums of all modes adds up at a time."""


def response(theta: Tensor, delta: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the multiplier, shape `grid`, and the 0-d flag "closed", from two scalars in float32."""
    multiplier, closed = _Response.apply(theta, delta, grid)  # type: ignore[no-untyped-call]
    return multiplier, closed


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, delta: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        radius, modes = log_radius(grid, theta), prod(grid)
        multiplier = torch.empty(grid, device=theta.device)
        closed = torch.empty((), dtype=torch.bool, device=theta.device)
        device.multiply_modes[(-(-modes // _BLOCK),)](
            theta, delta, radius, multiplier, closed, modes, LARGEST_LOG_EXPONENT, BLOCK=_BLOCK, num_warps=4
        )
        ctx.save_for_backward(multiplier, theta, delta, radius)
        ctx.mark_non_differentiable(closed)
        ctx.set_materialize_grads(False)  # else autograd fills a tensor with zeros for each of these
        return multiplier, closed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        multiplier, theta, delta, radius = ctx.saved_tensors
        theta_gradient, delta_gradient = torch.empty_like(theta), torch.empty_like(delta)
        device.multiply_modes_backward[(1,)](
            gradient.contiguous(), multiplier, theta, delta, radius, theta_gradient, delta_gradient,
            multiplier.numel(), LARGEST_LOG_EXPONENT, BLOCK=_BLOCK_OF_SUMS, num_warps=8,
        )  # fmt: skip
        return theta_gradient, delta_gradient, None
