"""The bodies of convolution blocks by fused kernels: the same parameters and the same function in few launches.

A body is a depthwise convolution, a norm of each channel, a 1x1x1 widening, GELU and a 1x1x1 convolution.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fheat.nn.convolutions import DepthwiseConv3d, Pointwise3d
from fheat.nn.layers import EachChannelNorm, untouched
from fheat.ops import kernels

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
    widths = norm.num_channels, widen.out_channels, narrow.out_channels
    voxels = len(x) * x.shape[2:].numel() * (8 if isinstance(parts[0], nn.ConvTranspose3d) else 1)
    return (
        all(width <= most for width, most in zip(widths, _WIDEST, strict=True))
        and gelu.approximate == "none"
        and widen.stride == narrow.stride == (1, 1, 1)
        and all(part.bias is not None for part in (norm, widen, narrow))
        and voxels * max(widths[0], widths[2]) < 2**31
    )


def residual_body(body: nn.Sequential, x: Tensor) -> Tensor:
    """Return x + body(x), float32 under autocast too, with channels last in memory."""
    if not untouched(body[0], DepthwiseConv3d):
        return body_beside(body, x, x)
    from fheat.ops.kernels.depthwise import depthwise_beside  # Triton takes a second to import
    from fheat.ops.kernels.widen import widened

    with kernels.on_device(x):
        channels_last = x.float().movedim(1, -1).contiguous()
        y, beside = depthwise_beside(channels_last, *_parameters(body[0]))
        return widened(y, beside, _weights(body), _eps(body)).movedim(-1, 1)


def body_beside(body: nn.Sequential, x: Tensor, shortcut: Tensor) -> Tensor:
    """Return body(x) + shortcut, float32 under autocast too, with channels last in memory."""
    from fheat.ops.kernels.widen import widened  # Triton takes a second to import

    y = body[0](x)
    with kernels.on_device(x):
        y, beside = y.float().movedim(1, -1).contiguous(), shortcut.movedim(1, -1).contiguous()
        return widened(y, beside, _weights(body), _eps(body)).movedim(-1, 1)


def every_second(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x, (N, C, X, Y, Z), and x in every second voxel along each axis, (N, C, ceil(X / 2), ...).

    What flows back to the two is added up in one pass; PyTorch would make a tensor of the grid for each axis.
    """
    whole, second = _EverySecond.apply(x)  # type: ignore[no-untyped-call]
    return whole, second


class _EverySecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x[:, :, ::2, ::2, ::2].clone(memory_format=torch.channels_last_3d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, whole: Tensor, second: Tensor) -> Tensor:
        total = whole.clone()
        total[:, :, ::2, ::2, ::2] += second
        return total


def _weights(body: nn.Sequential) -> "WidenWeights":
    from fheat.ops.kernels.widen import WidenWeights

    return WidenWeights(*_parameters(body[1]), *_parameters(body[2]), *_parameters(body[4]))


def _parameters(module: Any) -> tuple[Tensor, Tensor]:
    return module.weight, module.bias


def _eps(body: Any) -> float:
    return float(body[1].eps)
