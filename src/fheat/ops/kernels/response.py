"""The multiplier of a gate by one kernel, and its gradient by another: in plain PyTorch they are some thirty launches.

    m = exp(-(D r)^alpha),    alpha = 0.3 + 0.6 sigmoid(theta),    D = relu(delta)

The plain twin is `FractionalHeat.response`. Identity case: with delta <= 0 all of m is one, the flag is set, and both
gradients are exactly zero.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from fheat.ops.heat import LARGEST_LOG_EXPONENT, FractionalHeat, log_radius
from fheat.ops.kernels.device import response as device
from fheat.ops.kernels.first_gradient import first_gradient

_BLOCK = 1024
"""Number of modes of a program."""
_BLOCK_OF_SUMS = 4096
"""Number of modes that the one program with the sums of all modes adds up at a time."""


def response_of(gate: FractionalHeat, grid: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Return `gate.response(grid, like)`, by the kernel where the gate is the one of the paper."""
    theta, delta = gate.theta, gate.delta
    if gate.asleep or not gate.standard or theta is None or delta is None:
        return gate.response(grid, like)
    if any(one.device != like.device or one.dtype != torch.float32 for one in (theta, delta)):
        return gate.response(grid, like)
    gate.check_size(grid)
    return response(theta, delta, grid)


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
        ctx.set_materialize_grads(False)
        return multiplier, closed

    @staticmethod
    @first_gradient
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        multiplier, theta, delta, radius = ctx.saved_tensors
        theta_gradient, delta_gradient = torch.empty_like(theta), torch.empty_like(delta)
        device.multiply_modes_backward[(1,)](
            gradient.contiguous(), multiplier, theta, delta, radius, theta_gradient, delta_gradient,
            multiplier.numel(), LARGEST_LOG_EXPONENT, BLOCK=_BLOCK_OF_SUMS, num_warps=8,
        )  # fmt: skip
        return theta_gradient, delta_gradient, None
