"""Cosine transform of channels-last tensors by fused kernels, axis by axis.

The plain twins are `fheat.ops.dct.dct` and `idct` with `channels_last`. Tensors are (N, X, Y, Z, C), contiguous,
results float32. Gradients do not pass: the inverse transform is the transposed one, so the caller computes them itself.
"""

from math import prod

import torch
from torch import Tensor

from fheat.ops.dct import cosine_matrix, dct, idct
from fheat.ops.kernels.device.transform import along_axis, along_axis_and_back
from fheat.ops.kernels.launch import power_of_two

LONGEST = 64
"""Largest length of an axis: a tile with all rows of a longer axis does not fit, and `torch` computes the products."""
_ELEMENTS = 2048
"""Number of elements of a tile."""


def filtered(
    x: Tensor, multiplier: Tensor, closed: Tensor | None, *, keep_spectrum: bool
) -> tuple[Tensor, Tensor | None]:
    """Return idct(multiplier * dct(x)), or x bit for bit if `closed` is set, and the spectrum dct(x).

    `multiplier` is (X, Y, Z). Without `keep_spectrum` the spectrum may be None, because nothing stores it.
    """
    spectrum: Tensor | None
    if max(x.shape[1:4]) > LONGEST:
        x = x.float()
        spectrum = dct(x, channels_last=True)
        mixed = idct(spectrum * multiplier[..., None], channels_last=True)
        return mixed if closed is None else torch.where(closed, x, mixed), spectrum
    partial = _along(_along(x, 3, cosine_matrix(multiplier, x.shape[3])), 2, cosine_matrix(multiplier, x.shape[2]))
    partial, spectrum = _there_and_back(partial, multiplier.contiguous(), keep_spectrum)
    partial = _along(partial, 2, cosine_matrix(multiplier, x.shape[2], transposed=True))
    return _along(partial, 3, cosine_matrix(multiplier, x.shape[3], transposed=True), closed, x), spectrum


def _along(x: Tensor, axis: int, matrix: Tensor, closed: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    length = x.shape[axis]
    if length == 1 and closed is None:
        return x
    out = torch.empty(x.shape, device=x.device)
    programs, columns, shape = _tiles(x, axis)
    along_axis[programs](
        x, matrix, x if kept is None else kept, x if closed is None else closed, out, columns,
        **shape, FLAG=closed is not None,
    )  # fmt: skip
    return out


def _there_and_back(x: Tensor, multiplier: Tensor, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Transform along the first axis, multiply, transform back; return the result and, with `keep`, the spectrum."""
    length, channels = x.shape[1], x.shape[4]
    out = torch.empty(x.shape, device=x.device)
    spectrum = torch.empty_like(out) if keep else None
    programs, columns, shape = _tiles(x, 1)
    along_axis_and_back[programs](
        x, cosine_matrix(multiplier, length), cosine_matrix(multiplier, length, transposed=True), multiplier,
        out if spectrum is None else spectrum, out, columns, **shape, C=channels, KEEP=keep,
    )  # fmt: skip
    return out, spectrum


def _tiles(x: Tensor, axis: int) -> tuple[tuple[int], int, dict[str, int]]:
    """Return the grid of programs, the number of columns, and the constants for which the kernels are compiled."""
    length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    columns, padded = x.numel() // length, max(16, power_of_two(length))
    block = max(16, min(128, _ELEMENTS // padded))
    shape = {"N": length, "NP": padded, "INNER": inner, "BLOCK": block, "num_warps": 4}
    return (-(-columns // block),), columns, shape
