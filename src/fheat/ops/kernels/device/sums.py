"""Kernel that adds up what programs stored."""

import triton
import triton.language as tl


@triton.jit
def add_rows(partial, out, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[c] = sum over rows of partial[r, c], BLOCK columns per program, always in the same order."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, rows, ROWS):
        keep = (start + row < rows)[:, None] & (column < width)[None, :]
        total += tl.load(partial + (start + row)[:, None] * width + column[None, :], mask=keep, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < width)
