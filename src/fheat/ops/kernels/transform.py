"""Cosine transform of channels-last tensors by fused kernels, axis by axis.

The plain twins are `fheat.ops.dct.dct` and `idct` with `channels_last`. Tensors are (N, X, Y, Z, C), float32,
contiguous; there are no gradients: the transform is its own transposed inverse, and who calls it knows that.
"""

from math import prod

import torch
from torch import Tensor

from fheat.ops.dct import dct, idct, table
from fheat.ops.kernels.device.transform import along_axis
from fheat.ops.kernels.launch import power_of_two

LONGEST = 64
"""Of an axis; beyond it a tile of all its rows no longer fits, and the library's products do the work."""
_ELEMENTS = 4096
"""Of a tile."""


def forward(x: Tensor) -> Tensor:
    """Return dct(x)."""
    if max(x.shape[1:4]) > LONGEST:
        return dct(x, channels_last=True)
    for axis in (3, 2, 1):
        x = _along(x, axis, table(x, x.shape[axis]))
    return x


def inverse(spectrum: Tensor, multiplier: Tensor, closed: Tensor | None, kept: Tensor) -> Tensor:
    """Return idct(multiplier * spectrum), `multiplier` (X, Y, Z); or `kept`, bit for bit, where `closed` is set."""
    if max(spectrum.shape[1:4]) > LONGEST:
        found = idct(spectrum * multiplier[..., None], channels_last=True)
        return found if closed is None else torch.where(closed, kept, found)
    x = _along(spectrum, 1, table(spectrum, spectrum.shape[1], transposed=True), factor=multiplier.contiguous())
    x = _along(x, 2, table(x, x.shape[2], transposed=True))
    return _along(x, 3, table(x, x.shape[3], transposed=True), closed=closed, kept=kept)


def _along(
    x: Tensor,
    axis: int,
    matrix: Tensor,
    *,
    factor: Tensor | None = None,
    closed: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    if length == 1 and factor is None and closed is None:
        return x
    columns, padded = x.numel() // length, max(16, power_of_two(length))
    block = min(128, _ELEMENTS // padded)
    out = torch.empty_like(x)
    along_axis[(-(-columns // block),)](
        x, matrix, x if factor is None else factor, x if kept is None else kept, x if closed is None else closed, out,
        columns, inner, prod(x.shape[1:4]),
        N=length, NP=padded, C=x.shape[4], BLOCK=block, FACTOR=factor is not None, FLAG=closed is not None, num_warps=4,
    )  # fmt: skip
    return out
