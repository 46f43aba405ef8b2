"""Kernels of a gated channel mixer with its residual: out = x + (a * sigmoid(g)) R^T, a = x A^T, g = x G^T.

`x` (rows, C); A and G (H, C), R (C, H). The hidden channels are worked through WIDTH at a time, so that any number of
them fits. CP is C padded.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import product, sigmoid


@triton.jit
def rows_at(values, row, rows, channel, C: tl.constexpr):
    """Return rows of a (rows, C) matrix, zeros outside, their offsets and which elements exist."""
    place = row[:, None] * C + channel[None, :]
    keep = (row < rows)[:, None] & (channel < C)[None, :]
    return tl.load(values + place, mask=keep, other=0.0), place, keep


@triton.jit
def hidden_weights(
    value, gating, recover, hidden, channel, H: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Return A^T and G^T, (CP, WIDTH), and R^T, (WIDTH, CP), of some hidden channels, zeros in the padding."""
    keep = (channel < C)[:, None] & (hidden < H)[None, :]
    at = hidden[None, :] * C + channel[:, None]
    first = tl.load(value + at, mask=keep, other=0.0)
    second = tl.load(gating + at, mask=keep, other=0.0)
    back = channel[None, :] * H + hidden[:, None]
    third = tl.load(recover + back, mask=(hidden < H)[:, None] & (channel < C)[None, :], other=0.0)
    return first, second, third


@triton.jit
def gated_mix(
    x, value, gating, recover, out, rows,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK rows of the output."""
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CP)
    tile, place, keep = rows_at(x, row, rows, channel, C)
    total = tile
    for start in range(0, H, WIDTH):
        hidden = start + tl.arange(0, WIDTH)
        first, second, third = hidden_weights(value, gating, recover, hidden, channel, H, C)
        total += product(product(tile, first, DOT) * sigmoid(product(tile, second, DOT)), third, DOT)
    tl.store(out + place, total, mask=keep)


@triton.jit
def hidden_gradients(tile, arriving, first, second, third, DOT: tl.constexpr):
    """Return the hidden values a sigmoid(g), and the gradients of a and of g."""
    a = product(tile, first, DOT)
    gate = sigmoid(product(tile, second, DOT))
    inner = product(arriving, tl.trans(third), DOT)
    return a * gate, inner * gate, inner * a * gate * (1.0 - gate)


@triton.jit
def gated_mix_back(
    x, value, gating, recover, output_gradient, gradient, rows,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute dL/dx of BLOCK rows."""
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CP)
    tile, place, keep = rows_at(x, row, rows, channel, C)
    arriving, _, _ = rows_at(output_gradient, row, rows, channel, C)
    total = arriving
    for start in range(0, H, WIDTH):
        hidden = start + tl.arange(0, WIDTH)
        first, second, third = hidden_weights(value, gating, recover, hidden, channel, H, C)
        _inside, of_value, of_gate = hidden_gradients(tile, arriving, first, second, third, DOT)
        total += product(of_value, tl.trans(first), DOT) + product(of_gate, tl.trans(second), DOT)
    tl.store(gradient + place, total, mask=keep)


@triton.jit
def gated_mix_weights(
    x, value, gating, recover, output_gradient, partial, rows, span,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Store a program's share of dL/dA and dL/dG, (H, C), and dL/dR, (C, H), in its row of `partial`.

    A program has `span` rows and WIDTH hidden channels: the grid of programs is (parts, hidden channels / WIDTH).
    """
    part, channel = tl.program_id(0), tl.arange(0, CP)
    hidden = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first, second, third = hidden_weights(value, gating, recover, hidden, channel, H, C)
    of_first = tl.zeros([WIDTH, CP], tl.float32)
    of_second = tl.zeros([WIDTH, CP], tl.float32)
    of_third = tl.zeros([WIDTH, CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        row = start + tl.arange(0, BLOCK)
        tile, _, _ = rows_at(x, row, rows, channel, C)
        arriving, _, _ = rows_at(output_gradient, row, rows, channel, C)
        inside, of_value, of_gate = hidden_gradients(tile, arriving, first, second, third, DOT)
        of_first += product(tl.trans(of_value), tile, DOT)
        of_second += product(tl.trans(of_gate), tile, DOT)
        of_third += product(tl.trans(inside), arriving, DOT)
    keep = (hidden < H)[:, None] & (channel < C)[None, :]
    mine = partial + part * (3 * H * C)
    place = hidden[:, None] * C + channel[None, :]
    tl.store(mine + place, of_first, mask=keep)
    tl.store(mine + H * C + place, of_second, mask=keep)
    tl.store(mine + 2 * H * C + channel[None, :] * H + hidden[:, None], of_third, mask=keep)
