"""Kernels of the cosine transform along one axis: a small matrix times all columns along that axis."""

import triton
import triton.language as tl


@triton.jit
def along_axis(
    x, matrix, kept, flag, out, columns,
    N: tl.constexpr, NP: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr, FLAG: tl.constexpr,
):  # fmt: skip
    """Compute out[o, m, r] = sum_n matrix[m, n] x[o, n, r] in tiles of all N rows by BLOCK of the columns (o, r).

    The axis of `x` has length N, and its elements lie INNER apart; INNER is a constant so that the compiler sees which
    elements are neighbours. With FLAG the result is `kept` if the flag is set. Each product is computed as three
    products in TF32, which is as exact as float32.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, NP)
    place, keep = _tile(column, n, columns, INNER, N)
    value = tl.load(x + place, mask=keep, other=0.0).to(tl.float32)
    result = tl.dot(_square(matrix, n, N), value, input_precision="tf32x3")
    if FLAG:
        if tl.load(flag) != 0:
            result = tl.load(kept + place, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + place, result, mask=keep)


@triton.jit
def along_axis_and_back(
    x, matrix, inverse, factor, kept, flag, spectrum, out, columns,
    N: tl.constexpr, NP: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, KEEP: tl.constexpr,
    FLAG: tl.constexpr,
):  # fmt: skip
    """Compute spectrum = matrix x and out = inverse (factor * spectrum) along the first axis, tiles as in `along_axis`.

    `x` is (samples, N, INNER // C, C), `factor` is (N, INNER // C). The spectrum is stored only with KEEP.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, NP)
    place, keep = _tile(column, n, columns, INNER, N)
    value = tl.load(x + place, mask=keep, other=0.0).to(tl.float32)
    coefficients = tl.dot(_square(matrix, n, N), value, input_precision="tf32x3")
    if KEEP:
        tl.store(spectrum + place, coefficients, mask=keep)
    coefficients *= tl.load(factor + (n * (INNER // C))[:, None] + (column % INNER // C)[None, :], mask=keep, other=0.0)
    result = tl.dot(_square(inverse, n, N), coefficients, input_precision="tf32x3")
    if FLAG:
        if tl.load(flag) != 0:
            result = tl.load(kept + place, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + place, result, mask=keep)


@triton.jit
def _tile(column, n, columns, INNER: tl.constexpr, N: tl.constexpr):
    """Return the offsets of the elements of a tile, and which of them exist."""
    place = (column // INNER * (N * INNER) + column % INNER)[None, :] + (n * INNER)[:, None]
    return place, (n < N)[:, None] & (column < columns)[None, :]


@triton.jit
def _square(matrix, n, N: tl.constexpr):
    return tl.load(matrix + n[:, None] * N + n[None, :], mask=(n < N)[:, None] & (n < N)[None, :], other=0.0)
