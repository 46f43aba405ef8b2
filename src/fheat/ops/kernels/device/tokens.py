"""Kernels of the three products that tokens enter: q, k, v from the first third of the channels, and two branches.

    qkv = x1 Q^T,  fine = x2 F^T,  coarse = x3 G^T

`x` (rows, 3 T) with the thirds x1, x2, x3; Q (3 T, T), F and G (H, T). QP, TP and HP are 3 T, T and H padded. Products
are in float32.
"""

import triton
import triton.language as tl


@triton.jit
def matrix_tile(values, row, column, rows, columns, width):
    """Return a tile of a matrix whose rows are `width` numbers apart, zeros outside, its offsets and what exists."""
    place = row[:, None] * width + column[None, :]
    keep = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(values + place, mask=keep, other=0.0), place, keep


@triton.jit
def multiplied(x, weight, out, row, rows, T: tl.constexpr, TP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr):
    """Compute out = x weight^T for some rows of one third; `weight` (N, T), `out` (rows, N)."""
    inner, column = tl.arange(0, TP), tl.arange(0, NP)
    value, _, _ = matrix_tile(x, row, inner, rows, T, 3 * T)
    matrix, _, _ = matrix_tile(weight, column, inner, N, T, T)
    place = row[:, None] * N + column[None, :]
    product = tl.dot(value, tl.trans(matrix), input_precision="ieee")
    tl.store(out + place, product, mask=(row < rows)[:, None] & (column < N)[None, :])


@triton.jit
def token_products(
    x, query, narrow, other, qkv, fine, coarse, rows,
    T: tl.constexpr, TP: tl.constexpr, QP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the three products of BLOCK rows; `query`, `narrow` and `other` are Q, F and G."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    multiplied(x, query, qkv, row, rows, T, TP, 3 * T, QP)
    multiplied(x + T, narrow, fine, row, rows, T, TP, H, HP)
    multiplied(x + 2 * T, other, coarse, row, rows, T, TP, H, HP)


@triton.jit
def multiplied_back(
    x, weight, output_gradient, gradient, share, row, rows,
    T: tl.constexpr, TP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    """Compute dL/dx of some rows of one third, and their share of dL/dweight, (N, T)."""
    inner, column = tl.arange(0, TP), tl.arange(0, NP)
    value, place, keep = matrix_tile(x, row, inner, rows, T, 3 * T)
    matrix, weight_place, weight_keep = matrix_tile(weight, column, inner, N, T, T)
    arriving, _, _ = matrix_tile(output_gradient, row, column, rows, N, N)
    tl.store(gradient + place, tl.dot(arriving, matrix, input_precision="ieee"), mask=keep)
    tl.store(share + weight_place, tl.dot(tl.trans(arriving), value, input_precision="ieee"), mask=weight_keep)


@triton.jit
def token_products_back(
    x, query, narrow, other, qkv, fine, coarse, gradient, partial, rows,
    T: tl.constexpr, TP: tl.constexpr, QP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dL/dx of BLOCK rows, and the program's share of dL/dQ, dL/dF and dL/dG in its row of `partial`.

    Here `qkv`, `fine` and `coarse` are the gradients of these.
    """
    program = tl.program_id(0)
    row = program * BLOCK + tl.arange(0, BLOCK)
    share = partial + program * (3 * T * T + 2 * H * T)
    multiplied_back(x, query, qkv, gradient, share, row, rows, T, TP, 3 * T, QP)
    multiplied_back(x + T, narrow, fine, gradient + T, share + 3 * T * T, row, rows, T, TP, H, HP)
    multiplied_back(
        x + 2 * T, other, coarse, gradient + 2 * T, share + 3 * T * T + H * T, row, rows, T, TP, H, HP
    )  # fmt: skip
