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

    `multiplier` is (X, Y, Z). Without `keep_spectrum` the spectrum may be None, because nothing stores it. Short axes
    are transformed together, so that small grids take one launch or three in the place of five.
    """
    spectrum: Tensor | None
    if max(x.shape[1:4]) > LONGEST:
        x = x.float()
        spectrum = dct(x, channels_last=True)
        mixed = idct(spectrum * multiplier[..., None], channels_last=True)
        return mixed if closed is None else torch.where(closed, x, mixed), spectrum
    first, *others = axes_together(*x.shape[1:4])
    rows, behind = x.view(len(x), *map(prod, (first, *others)), x.shape[4]), list(enumerate(others, start=2))
    partial = rows
    for axis, lengths in reversed(behind):
        partial = _along(partial, axis, cosine_matrix(multiplier, *lengths), None, rows)
    last = None if others else closed
    partial, spectrum = _there_and_back(partial, first, multiplier.contiguous(), last, rows, keep=keep_spectrum)
    for axis, lengths in behind:
        last = closed if axis == behind[-1][0] else None
        partial = _along(partial, axis, cosine_matrix(multiplier, *lengths, transposed=True), last, rows)
    return partial.view(x.shape), None if spectrum is None else spectrum.view(x.shape)


def axes_together(x: int, y: int, z: int) -> list[tuple[int, ...]]:
    """Return the lengths of the axes, neighbours together where they have `LONGEST` voxels or fewer.

    >>> axes_together(28, 28, 20), axes_together(8, 8, 6), axes_together(4, 4, 3)
    ([(28,), (28,), (20,)], [(8,), (8, 6)], [(4, 4, 3)])
    """
    if x * y * z <= LONGEST:
        return [(x, y, z)]
    if y * z <= LONGEST:
        return [(x,), (y, z)]
    return [(x, y), (z,)] if x * y <= LONGEST else [(x,), (y,), (z,)]


def _along(x: Tensor, axis: int, matrix: Tensor, closed: Tensor | None, kept: Tensor) -> Tensor:
    """Return x (N, A, ..., C) multiplied by a matrix along an axis, or `kept` if `closed` is set."""
    out = torch.empty(x.shape, device=x.device)
    programs, columns, shape = _tiles(x, axis)
    along_axis[programs](
        x, matrix, kept, x if closed is None else closed, out, columns, **shape, FLAG=closed is not None
    )  # fmt: skip
    return out


def _there_and_back(
    x: Tensor, lengths: tuple[int, ...], multiplier: Tensor, closed: Tensor | None, kept: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """Transform x (N, A, ..., C) along A, multiply, transform back; return that and, with `keep`, the spectrum.

    `lengths` are those of the axes that make up A. The result is `kept` if `closed` is set.
    """
    out = torch.empty(x.shape, device=x.device)
    spectrum = torch.empty_like(out) if keep else None
    matrix, inverse = cosine_matrix(multiplier, *lengths), cosine_matrix(multiplier, *lengths, transposed=True)
    programs, columns, shape = _tiles(x, 1)
    along_axis_and_back[programs](
        x, matrix, inverse, multiplier, kept, x if closed is None else closed,
        out if spectrum is None else spectrum, out, columns,
        **shape, C=x.shape[-1], KEEP=keep, FLAG=closed is not None,
    )  # fmt: skip
    return out, spectrum


def _tiles(x: Tensor, axis: int) -> tuple[tuple[int], int, dict[str, int]]:
    """Return the grid of programs, the number of columns, and the constants for which the kernels are compiled."""
    length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    columns, padded = x.numel() // length, max(16, power_of_two(length))
    block = max(16, min(128, _ELEMENTS // padded))
    shape = {"N": length, "NP": padded, "INNER": inner, "BLOCK": block, "num_warps": 4}
    return (-(-columns // block),), columns, shape
