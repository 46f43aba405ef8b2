"""Kernels of the 3x3x3 depthwise convolution on large grids: a program sweeps along the first axis.

A program owns a column of HIGH by WIDE voxels of the last two axes, BLOCK channels of one sample and `run` planes. It
reads the nine shifted tiles of each plane once, and every tile serves the three taps along the first axis: 9 reads per
voxel where `depthwise` has 27. Tensors are (samples, X, Y, Z, C).
"""

import triton
import triton.language as tl


@triton.jit
def column_at(column, chunk, Y, Z, C: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Return rows j, columns k and channels of a tile, each along its axis, and the offsets within a plane."""
    across = tl.cdiv(Z, WIDE)
    j = (column // across * HIGH + tl.arange(0, HIGH))[:, None, None]
    k = (column % across * WIDE + tl.arange(0, WIDE))[None, :, None]
    channel = (chunk * BLOCK + tl.arange(0, BLOCK))[None, None, :]
    return j, k, channel, (j * Z + k) * C + channel


@triton.jit
def read_near(plane, j, k, dj, dk, keep, place, Y, Z, C: tl.constexpr):
    """Return the tile of a plane that lies (dj, dk) away, with zeros outside the grid."""
    near = keep & (j + dj >= 0) & (j + dj < Y) & (k + dk >= 0) & (k + dk < Z)
    return tl.load(plane + place + (dj * Z + dk) * C, mask=near, other=0.0)


@triton.jit(do_not_specialize=["X", "Y", "Z", "run"])
def sweep(
    x, table, add, out, X, Y, Z, run,
    C: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """Compute out = depthwise(x) + add, with zeros outside the grid, as `depthwise.convolve` does.

    Three tiles wait for their planes: `behind`, `middle` and `ahead` are the outputs of the planes before, at and after
    the one that is read. The grid of programs is (columns and channels, runs, samples).
    """
    chunks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    part, first, sample = tl.program_id(0), tl.program_id(1) * run, tl.program_id(2)
    j, k, channel, place = column_at(part // chunks, part % chunks, Y, Z, C, HIGH, WIDE, BLOCK)
    keep = (j < Y) & (k < Z) & (channel < C)
    weights = ()
    for tap in tl.static_range(27):
        weights += (tl.load(table + (26 - tap if FLIP else tap) * C + channel, mask=channel < C, other=0.0),)
    behind = tl.zeros([HIGH, WIDE, BLOCK], tl.float32)
    middle = tl.zeros([HIGH, WIDE, BLOCK], tl.float32)
    start = tl.zeros([HIGH, WIDE, BLOCK], tl.float32)
    if BIAS:
        start += tl.load(add + channel, mask=channel < C, other=0.0)
    for plane in range(first - 1, tl.minimum(first + run, X) + 1):
        ahead = start
        i = plane + tl.arange(0, 1)[:, None, None]
        within = keep & (i >= 0) & (i < X)
        there = (sample * X + plane) * Y * Z * C
        for side in tl.static_range(9):
            value = read_near(x + there, j, k, side // 3 - 1, side % 3 - 1, within, place, Y, Z, C)
            ahead += value * weights[side]
            middle += value * weights[9 + side]
            behind += value * weights[18 + side]
        if plane > first:
            before = there - Y * Z * C + place
            if not BIAS:
                behind += tl.load(add + before, mask=keep, other=0.0)
            tl.store(out + before, behind, mask=keep)
        behind = middle
        middle = ahead


@triton.jit(do_not_specialize=["X", "Y", "Z", "run"])
def sweep_weights(
    output_gradient, x, partial, X, Y, Z, run,
    C: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the weights (C, 27) and of the bias (C) as one row of `partial` per program.

    A program owns `run` planes of x and keeps the gradients of three planes: each tile of x meets all three of them.
    Sums over the rows of a tile stay within a thread, because HIGH is the axis that Triton gives to one thread.
    """
    chunks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    part, first, sample = tl.program_id(0), tl.program_id(1) * run, tl.program_id(2)
    j, k, channel, place = column_at(part // chunks, part % chunks, Y, Z, C, HIGH, WIDE, BLOCK)
    keep = (j < Y) & (k < Z) & (channel < C)
    size = Y * Z * C
    origin = output_gradient + sample * X * size
    i = first + tl.arange(0, 1)[:, None, None]
    behind = tl.load(origin + (first - 1) * size + place, mask=keep & (i > 0), other=0.0)
    middle = tl.load(origin + first * size + place, mask=keep, other=0.0)
    sums = ()
    for _ in tl.static_range(28):
        sums += (tl.zeros([WIDE, BLOCK], tl.float32),)
    for plane in range(first, tl.minimum(first + run, X)):
        i = plane + tl.arange(0, 1)[:, None, None]
        ahead = tl.load(origin + (plane + 1) * size + place, mask=keep & (i + 1 < X), other=0.0)
        added = ()
        there = x + (sample * X + plane) * size
        for side in tl.static_range(9):
            value = read_near(there, j, k, side // 3 - 1, side % 3 - 1, keep, place, Y, Z, C)
            added += (tl.sum(ahead * value, axis=0),)
            added += (tl.sum(middle * value, axis=0),)
            added += (tl.sum(behind * value, axis=0),)
        added += (tl.sum(middle, axis=0),)
        after = ()
        for tap in tl.static_range(28):
            after += (sums[tap] + added[tap],)
        sums = after
        behind = middle
        middle = ahead
    columns = tl.cdiv(Y, HIGH) * tl.cdiv(Z, WIDE)
    row = partial + ((sample * tl.num_programs(1) + tl.program_id(1)) * columns + part // chunks) * 28 * C
    at = part % chunks * BLOCK + tl.arange(0, BLOCK)
    for tap in tl.static_range(27):
        tl.store(row + at * 27 + tap % 3 * 9 + tap // 3, tl.sum(sums[tap], axis=0), mask=at < C)
    tl.store(row + 27 * C + at, tl.sum(sums[27], axis=0), mask=at < C)
