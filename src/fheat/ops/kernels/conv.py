"""3x3x3 convolution with few channels by fused kernels: padding 1, stride 1 or 2, no bias.

The plain twin is `torch.nn.functional.conv3d`. Tensors are (N, X, Y, Z, C), float32, contiguous.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fheat.ops.kernels import launch
from fheat.ops.kernels.device import conv


def conv3(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the convolution of x, (N, ceil(X / stride), ..., out channels); `weight` is (out, in, 3, 3, 3)."""
    out: Tensor = _Conv3.apply(x, weight.contiguous(), stride, launch.operand_type(x))  # type: ignore[no-untyped-call]
    return out


class _Conv3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, dot: str) -> Tensor:
        samples, *grid, channels = x.shape
        out = torch.empty(samples, *(-(-length // stride) for length in grid), len(weight), device=x.device)
        shape = _shape(channels, len(weight))
        conv.convolve[_tiles(out, shape["BLOCK"]), samples](
            x, weight, out, *grid, **shape, S=stride, FLIP=False, DOT=dot
        )
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.dot = stride, dot
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rest = gradient.contiguous(), x, weight, ctx.stride, ctx.dot
        x_gradient = _input_gradient(*rest) if ctx.needs_input_grad[0] else None
        return x_gradient, _weight_gradient(*rest) if ctx.needs_input_grad[1] else None, None, None


def _input_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, dot: str) -> Tensor:
    """Return the gradient of the input."""
    samples, *grid, channels = x.shape
    out, shape = torch.empty_like(x), _shape(len(weight), channels)
    tiles = _tiles(gradient, shape["BLOCK"])
    if stride == 1:
        conv.convolve[tiles, samples](gradient, weight, out, *grid, **shape, S=1, FLIP=True, DOT=dot)
    else:
        conv.convolve_back[8 * tiles, samples](gradient, weight, out, *grid, **shape, DOT=dot)
    return out


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, dot: str) -> Tensor:
    """Return the gradient of the weights, added up from the shares of all programs in a fixed order."""
    samples, *grid, channels = x.shape
    shape = _shape(channels, len(weight))
    tiles, chunks = _tiles(gradient, shape["BLOCK"]), -(-27 * channels // conv.CHUNK.value)
    span = -(-tiles // max(1, launch.PROGRAMS // (samples * chunks)))
    parts = -(-tiles // span)
    partial = torch.empty(samples * parts, weight.numel(), device=x.device)
    conv.convolve_weights[chunks, samples, parts](
        gradient, x, partial, *grid, span * shape["BLOCK"], **shape, S=stride, DOT=dot
    )
    return launch.add_rows(partial).view_as(weight)


def _shape(channels: int, out_channels: int) -> dict[str, int]:
    """Return the constants for which the kernels are compiled."""
    padded = max(16, launch.power_of_two(out_channels))
    block = max(16, min(64, 4096 // padded))
    return {"C": channels, "N": out_channels, "NP": padded, "BLOCK": block, "num_warps": 4, "num_stages": 1}


def _tiles(out: Tensor, block: int) -> int:
    """Return the number of tiles of `block` voxels that cover one sample of (N, X, Y, Z, C)."""
    return -(-out[0, ..., 0].numel() // block)
