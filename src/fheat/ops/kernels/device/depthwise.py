"""Kernels of the 3x3x3 depthwise convolution, with a residual or a bias, and of the gradient of its weights.

Each works by tiles of voxels and padded channels, for any number of channels, or in runs along Z, for those in fours.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import read_row, tile_at


@triton.jit
def convolve(
    x, table, add, out, X, Y, Z,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr, BIAS: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    """Compute out = depthwise(x) + add, with zeros outside the grid; LINES of the nine lines of three taps at once.

    `add` is a bias (C) with BIAS, else a residual of the shape of x. FLIP computes the transposed convolution, which
    maps output gradients to input gradients. Each program computes one tile. `x` (samples, X Y Z, C), `table` (27, C).
    """
    part, sample = tl.program_id(0), tl.program_id(1)
    voxels = X * Y * Z
    channel = tl.arange(0, CP)
    valid = channel < C
    voxel, rows, keep, place = tile_at(part * BLOCK, sample, voxels, channel, C, BLOCK)
    i, j, k = voxel // (Y * Z), voxel // Z % Y, voxel % Z
    total = tl.zeros([BLOCK, CP], tl.float32)
    for start in range(0, 9, LINES):
        for offset in tl.static_range(LINES):
            line = start + offset
            di = line // 3 - 1
            dj = line % 3 - 1
            beside = rows & (i + di >= 0) & (i + di < X) & (j + dj >= 0) & (j + dj < Y)
            there = x + place + (di * Y + dj) * Z * C
            for dk in tl.static_range(-1, 2):
                near = beside & (k + dk >= 0) & (k + dk < Z)
                value = tl.load(there + dk * C, mask=near[:, None] & valid[None, :], other=0.0)
                tap = line * 3 + dk + 1
                total += value * read_row(table + (26 - tap if FLIP else tap) * C, channel, C)
    if BIAS:
        total += read_row(add, channel, C)
    else:
        total += tl.load(add + place, mask=keep, other=0.0)
    tl.store(out + place, total, mask=keep)


@triton.jit
def run_at(column, X, Y, Z, RUN: tl.constexpr):
    """Return sample * X + i, i, j and the first k of a run of RUN voxels along Z, which RUN divides."""
    runs = Z // RUN
    row = column // runs
    return row // Y, row // Y % X, row % Y, column % runs * RUN


@triton.jit
def read_run(there, beside, k, Z, C: tl.constexpr, RUN: tl.constexpr):
    """Return the RUN + 2 tiles of a run and of its two neighbours along Z, zeros outside the grid."""
    values = ()
    for step in tl.static_range(RUN + 2):
        near = beside
        if step == 0:
            near = beside & (k > 0)
        if step == RUN + 1:
            near = beside & (k + RUN < Z)
        values += (tl.load(there + (step - 1) * C, mask=near, other=0.0),)
    return values


@triton.jit
def convolve_runs(
    x, table, add, out, X, Y, Z, items,
    C: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Compute out = depthwise(x) + add as `convolve` does, for C that is a multiple of four, without padded channels.

    An item is RUN successive voxels of a line along Z, which RUN divides, by four channels, and the work of one thread.
    It reads each line of taps once, RUN + 2 voxels, where `convolve` reads 3 RUN. `items` is their number in the batch;
    channels come first among them, so that successive threads read successive memory. Each program computes BLOCK.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    quads: tl.constexpr = C // 4
    plane, i, j, k = run_at(item // quads, X, Y, Z, RUN)
    channel = (item % quads * 4)[:, None] + tl.arange(0, 4)[None, :]
    place = (((plane * Y + j) * Z + k) * C)[:, None] + channel
    exists = item < items
    totals = ()
    for _ in tl.static_range(RUN):
        totals += (tl.zeros([BLOCK, 4], tl.float32),)
    for line in tl.static_range(9):
        di = line // 3 - 1
        dj = line % 3 - 1
        beside = exists & (i + di >= 0) & (i + di < X) & (j + dj >= 0) & (j + dj < Y)
        values = read_run(x + place + (di * Y + dj) * Z * C, beside[:, None], k[:, None], Z, C, RUN)
        for tap in tl.static_range(3):
            weight = tl.load(table + (26 - line * 3 - tap if FLIP else line * 3 + tap) * C + channel)
            sums = ()
            for step in tl.static_range(RUN):
                sums += (totals[step] + values[step + tap] * weight,)
            totals = sums
    for step in tl.static_range(RUN):
        if BIAS:
            total = totals[step] + tl.load(add + channel)
        else:
            total = totals[step] + tl.load(add + place + step * C, mask=exists[:, None], other=0.0)
        tl.store(out + place + step * C, total, mask=exists[:, None])


@triton.jit
def convolve_weights_runs(
    output_gradient, x, partial, width, at, X, Y, Z, columns, span,
    C: tl.constexpr, RUN: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store what `convolve_weights` does, for C that is a multiple of four.

    A column is a run of RUN voxels along Z, which RUN divides, and `columns` is their number in the batch. A program
    works through `span` of them, BLOCK at a time, for CHUNK channels and the nine taps of one plane, and has a row of
    `partial`. The grid of programs is (rows, chunks of channels, 3).
    """
    part, chunk, side = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channel = chunk * CHUNK + tl.arange(0, CHUNK)
    valid = (channel < C)[None, :]
    totals = ()
    for _ in tl.static_range(10):
        totals += (tl.zeros([BLOCK, CHUNK], tl.float32),)
    for start in range(part * span, part * span + span, BLOCK):
        column = start + tl.arange(0, BLOCK)
        plane, i, j, k = run_at(column, X, Y, Z, RUN)
        exists = column < columns
        place = (((plane * Y + j) * Z + k) * C)[:, None] + channel[None, :]
        inside = exists & (i + side > 0) & (i + side <= X)
        gradients, bias = (), totals[9]
        for step in tl.static_range(RUN):
            gradient = tl.load(output_gradient + place + step * C, mask=exists[:, None] & valid, other=0.0)
            gradients += (gradient,)
            bias += gradient
        sums = ()
        for dj in tl.static_range(3):
            beside = (inside & (j + dj > 0) & (j + dj <= Y))[:, None] & valid
            there = x + place + ((side - 1) * Y + dj - 1) * Z * C
            values = read_run(there, beside, k[:, None], Z, C, RUN)
            for tap in tl.static_range(3):
                total = totals[dj * 3 + tap]
                for step in tl.static_range(RUN):
                    total += gradients[step] * values[step + tap]
                sums += (total,)
        sums += (bias,)
        totals = sums
    row = partial + part * width + at
    for tap in tl.static_range(9):
        tl.store(row + channel * 27 + side * 9 + tap, tl.sum(totals[tap], axis=0), mask=channel < C)
    if side == 0:
        tl.store(row + 27 * C + channel, tl.sum(totals[9], axis=0), mask=channel < C)


@triton.jit
def convolve_weights(
    output_gradient, x, partial, width, at, X, Y, Z, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the weights (C, 27) and of the bias (C) in rows of `partial` from `at` on.

    Each program computes the three taps along the last axis, so axis 2 of the grid of programs has length nine.
    """
    sample, part, line = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    di, dj = line // 3 - 1, line % 3 - 1
    voxels = X * Y * Z
    channel = tl.arange(0, CP)
    valid = channel < C
    before = tl.zeros([BLOCK, CP], tl.float32)
    middle = tl.zeros([BLOCK, CP], tl.float32)
    behind = tl.zeros([BLOCK, CP], tl.float32)
    bias = tl.zeros([BLOCK, CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel, rows, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        i, j, k = voxel // (Y * Z) + di, voxel // Z % Y + dj, voxel % Z
        near = rows & (i >= 0) & (i < X) & (j >= 0) & (j < Y)
        there = x + place + (di * Y + dj) * Z * C
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0)
        before += gradient * tl.load(there - C, mask=(near & (k > 0))[:, None] & valid[None, :], other=0.0)
        middle += gradient * tl.load(there, mask=near[:, None] & valid[None, :], other=0.0)
        behind += gradient * tl.load(there + C, mask=(near & (k < Z - 1))[:, None] & valid[None, :], other=0.0)
        bias += gradient
    row = partial + (sample * SPLITS + part) * width + at
    tap = row + channel * 27 + line * 3
    tl.store(tap, tl.sum(before, axis=0), mask=valid)
    tl.store(tap + 1, tl.sum(middle, axis=0), mask=valid)
    tl.store(tap + 2, tl.sum(behind, axis=0), mask=valid)
    if line == 0:
        tl.store(row + 27 * C + channel, tl.sum(bias, axis=0), mask=valid)
