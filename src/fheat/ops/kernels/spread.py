"""The convolution that turns each voxel into a patch, with channels first, by one product and a fused kernel.

The plain twin is `fheat.nn.convolutions.PatchTransposed3d`. Operands and result have the type of autocast.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels import launch
from fheat.ops.kernels.device import spread as device
from fheat.ops.kernels.patch import operand, packed

_BLOCK = 512
"""Number of lines of a tile."""


def spread(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return vec(patch) = W^T x + b for each voxel; the weights are (in, out, side, side, side), side a power of two.

    Shapes: (N, X, Y, Z, in) -> (N, out, side X, side Y, side Z).
    """
    out: Tensor = _Spread.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kind, channels, side = operand(x), weight.shape[1], weight.shape[-1]
        rows, matrix = packed(x, kind).view(-1, x.shape[-1]), packed(weight, kind).flatten(1)
        samples, *grid = x.shape[:4]
        lines = grid[0] * grid[1] * grid[2] * side**2
        out = torch.empty(samples, channels, *(side * length for length in grid), dtype=kind, device=x.device)
        device.to_volume[(-(-lines // _BLOCK), samples * channels)](
            rows @ matrix, bias, out, lines, *grid[1:], K=channels, SIDE=side, BLOCK=_BLOCK, num_warps=4
        )
        ctx.save_for_backward(rows, matrix, weight)
        ctx.x = x.shape, x.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, matrix, weight = ctx.saved_tensors
        shape, kind = ctx.x
        samples, channels, side = len(gradient), weight.shape[1], weight.shape[-1]
        lines = shape[1:4].numel() * side**2
        tiles = -(-lines // _BLOCK)
        parts = min(tiles, max(1, 2 * launch.PROGRAMS // (samples * channels)))
        z_gradient = torch.empty(len(rows), matrix.shape[1], dtype=rows.dtype, device=rows.device)
        shares = torch.empty(samples * parts, channels, device=rows.device)
        device.to_rows[(parts, samples * channels)](
            gradient.contiguous(), z_gradient, shares, lines, -(-tiles // parts) * _BLOCK, *shape[2:4],
            K=channels, SIDE=side, BLOCK=_BLOCK, num_warps=4, num_stages=1,
        )  # fmt: skip
        x_gradient = (z_gradient @ matrix.t()).to(kind).view(shape)
        weight_gradient = (rows.t() @ z_gradient).to(weight.dtype).view_as(weight)
        return x_gradient, weight_gradient, launch.add_rows(shares)
