"""The bodies of convolution blocks by fused kernels: the same parameters and the same function in few launches.

A body is a depthwise convolution, a norm of each channel, a 1x1x1 widening, GELU and a 1x1x1 convolution.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d, DoublingDepthwise3d, Pointwise3d, pointwise
from fheat.nn.layers import EachChannelNorm, untouched
from fheat.ops import kernels
from fheat.ops.kernels.widen_tiles import Widths, fit_device

if TYPE_CHECKING:
    from fheat.ops.kernels.widen import WidenWeights

_BEHIND = (EachChannelNorm, Pointwise3d, nn.GELU, Pointwise3d)
"""Modules of a body behind its depthwise convolution."""
_WIDEST = 64, 128, 128
"""Most channels, hidden channels and output channels: the gradients of more weights would not fit the registers."""


def fusable(body: nn.Module, x: Tensor) -> bool:
    """Return whether a kernel can run a body behind its first module: it reads the weights and calls no submodule.

    Eight voxels may become one, whose norm plain torch may refuse.
    """
    if x.ndim != 5 or not kernels.usable(x):
        return False
    if x.shape[2:].numel() <= 8 or not untouched(body, nn.Sequential):
        return False
    parts = list(body.children())
    behind = parts[1:]
    if len(behind) != len(_BEHIND) or not all(map(untouched, behind, _BEHIND)):
        return False
    norm, widen, gelu, narrow = (cast(Any, part) for part in behind)
    widths = Widths(norm.num_channels, widen.out_channels, narrow.out_channels)
    voxels = len(x) * x.shape[2:].numel() * (8 if isinstance(parts[0], nn.ConvTranspose3d) else 1)
    return (
        all(width <= most for width, most in zip(widths, _WIDEST, strict=True))
        and gelu.approximate == "none"
        and widen.stride == narrow.stride == (1, 1, 1)
        and all(part.bias is not None for part in (norm, widen, narrow))
        and voxels * max(widths.channels, widths.out) < 2**31
        and fit_device(x, widths)
    )


def residual_body(body: nn.Sequential, x: Tensor) -> Tensor:
    """Return x + body(x), float32 under autocast too, with channels last in memory."""
    if not untouched(body[0], DepthwiseConv3d):
        return body_beside(body, x, x)
    from fheat.ops.kernels.depthwise import depthwise_beside  # Triton takes a second to import
    from fheat.ops.kernels.widen import widened

    with kernels.on_device(x):
        channels_last = x.float().movedim(1, -1).contiguous()
        y, beside = depthwise_beside(channels_last, *_parameters(body[0]), _between(x))
        return widened(y, beside, _weights(body), _eps(body)).movedim(-1, 1)


def body_beside(body: nn.Sequential, x: Tensor, shortcut: Tensor) -> Tensor:
    """Return body(x) + shortcut, float32 under autocast too, with channels last in memory.

    Where the two have not the same shape, because one was replaced, plain torch adds or refuses them.
    """
    from fheat.ops.kernels.widen import widened  # Triton takes a second to import

    y = _convolved(body[0], x)
    if shortcut.shape != (len(y), cast(Pointwise3d, body[4]).out_channels, *y.shape[2:]):
        return cast(Tensor, body[1:](y)) + shortcut
    with kernels.on_device(x):
        y, beside = y.movedim(1, -1).contiguous(), shortcut.movedim(1, -1).contiguous()
        return widened(y, beside, _weights(body), _eps(body)).movedim(-1, 1)


def body_before(body: nn.Sequential, x: Tensor, shortcut: Pointwise3d) -> tuple[Tensor, Tensor]:
    """Return body(x) + shortcut(x), both of which halve the grid, and x itself for a skip.

    Shapes: (N, C, X, Y, Z) -> (N, out, ceil(X / 2), ...) and the same. What flows back to the convolution, the shortcut
    and the skip is added up in one pass.
    """
    from fheat.ops.kernels.strided import halved_beside  # Triton takes a second to import
    from fheat.ops.kernels.widen import widened

    with kernels.on_device(x):
        channels_last = x.float().movedim(1, -1).contiguous()
        y, second, whole = halved_beside(channels_last, *_parameters(body[0]), _between(x))
        beside = pointwise(second.movedim(-1, 1), shortcut.weight, shortcut.bias).movedim(1, -1).contiguous()
        return widened(y, beside, _weights(body), _eps(body)).movedim(-1, 1), whole.movedim(-1, 1)


def body_added_to_skip(body: nn.Sequential, x: Tensor, shortcut: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """Return skip + pad(body(x) + spread(shortcut) + bias), where the body doubles the grid.

    Shapes: x (N, C, X, Y, Z), shortcut (N, out, X, Y, Z), bias (out), skip and result (N, out, 2X, 2Y, 2Z). Every
    second voxel has the shortcut, and one plane of zeros is in front of each axis. It is float32 under autocast too.
    """
    from fheat.ops.kernels.widen import widened_added_to_skip  # Triton takes a second to import

    y, weights = _convolved(body[0], x), _weights(body)
    with kernels.on_device(x):
        y, coarse, beside = (part.movedim(1, -1).contiguous() for part in (y, shortcut, skip))
        weights = weights._replace(second_bias=weights.second_bias + bias)
        return widened_added_to_skip(y, coarse, beside, weights, _eps(body)).movedim(-1, 1)


def _convolved(convolution: nn.Module, x: Tensor) -> Tensor:
    """Return the output of a convolution that doubles the grid, in the type of `_between`; that of any other layer in
    its place is float32."""
    if untouched(convolution, DoublingDepthwise3d):
        return cast(DoublingDepthwise3d, convolution).doubled(x, _between(x))
    return cast(Tensor, convolution(x)).float()


def _between(x: Tensor) -> torch.dtype:
    """Return the type in which the result of a depthwise convolution waits for its norm: that of autocast, as in the
    plain twin, because memory bounds what reads it."""
    from fheat.ops.kernels.launch import TYPES, operand_type

    return TYPES[operand_type(x)]


def _weights(body: nn.Sequential) -> "WidenWeights":
    from fheat.ops.kernels.widen import WidenWeights

    return WidenWeights(*_parameters(body[1]), *_parameters(body[2]), *_parameters(body[4]))


def _parameters(module: Any) -> tuple[Tensor, Tensor]:
    return module.weight, module.bias


def _eps(body: Any) -> float:
    return float(body[1].eps)
