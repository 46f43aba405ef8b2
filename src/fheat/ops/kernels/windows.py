"""Adding a window to the sums of a sliding window in one pass: its activation, its weight and both sums.

The plain twin is in `fheat.inference.sliding`: softmax over the channels, a product with the weights, and two sums.
"""

from math import prod
from typing import Literal

from torch import Tensor

from fheat.ops.kernels import on_device
from fheat.ops.kernels.device.windows import add_window as device

_BLOCK = 1024
"""Number of voxels of a program."""


def add_window(
    logits: Tensor,
    weight: Tensor,
    factor: float,
    sums: Tensor,
    weights: Tensor,
    corner: tuple[int, int, int],
    activation: Literal["softmax", "sigmoid", "none"],
) -> None:
    """Add factor * weight * activation(logits) to `sums` and factor * weight to `weights`, at a corner of both.

    Shapes: logits (K, X, Y, Z) of any floating type; weight (X, Y, Z); sums (K, *volume) and weights (1, *volume),
    contiguous. Identity case: with activation `none`, weight and factor 1 the logits themselves are added.
    """
    voxels, row = prod(sums.shape[1:]), sums.shape[3]
    plane = sums.shape[2] * row
    first = corner[0] * plane + corner[1] * row + corner[2]
    channels, x, y, z = logits.shape
    with on_device(sums):
        device[(-(-x * y * z // _BLOCK),)](
            logits.contiguous(), weight, sums, weights, factor, first, plane, row, voxels,
            K=channels, X=x, Y=y, Z=z, BLOCK=_BLOCK, KIND=activation, num_warps=4,
        )  # fmt: skip
