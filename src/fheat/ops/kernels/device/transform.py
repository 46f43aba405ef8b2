"""Kernel of the cosine transform along one axis: a small matrix times everything beside it."""

import triton
import triton.language as tl


@triton.jit
def along_axis(
    x, matrix, factor, kept, flag, out, columns, inner, voxels,
    N: tl.constexpr, NP: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    FACTOR: tl.constexpr, FLAG: tl.constexpr,
):  # fmt: skip
    """out[o, m, r] = sum_n matrix[m, n] x[o, n, r], in tiles of all N rows by BLOCK of the columns (o, r).

    `x` is a tensor (samples, voxels, C) with an axis of length N, `inner` elements apart. With FACTOR x is multiplied
    first by a number per voxel; with FLAG the result is `kept` where the flag is set. Products are made of three in
    TF32, which leaves the rounding of float32.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, NP)
    place = (column // inner * (N * inner) + column % inner)[None, :] + (n * inner)[:, None]
    keep = (n < N)[:, None] & (column < columns)[None, :]
    value = tl.load(x + place, mask=keep, other=0.0)
    if FACTOR:
        value *= tl.load(factor + place // C % voxels, mask=keep, other=0.0)
    square = (n < N)[:, None] & (n < N)[None, :]
    table = tl.load(matrix + n[:, None] * N + n[None, :], mask=square, other=0.0)
    found = tl.dot(table, value, input_precision="tf32x3")
    if FLAG:
        if tl.load(flag) != 0:
            found = tl.load(kept + place, mask=keep, other=0.0)
    tl.store(out + place, found, mask=keep)
