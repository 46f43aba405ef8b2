"""Kernels of the 3x3x3 depthwise convolution between a grid and one with twice as many voxels per axis.

A tap t of 0, 1 or 2 along an axis joins the coarse voxel i and the fine voxel 2 i + t - 1. Tiles are of coarse voxels.
The coarse tensor is (samples, X, Y, Z, C), the fine one (samples, FX, FY, FZ, C), tables are (27, C).
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import read_row, tile_at


@triton.jit
def halve(
    fine, table, add, out, X, Y, Z, FX, FY, FZ,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Compute out[i] = sum over t of table[t] fine[2 i + t - 1] + add, with zeros outside the grid.

    LINES of the nine lines of three taps are read at once.
    """
    part, sample = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    voxel, rows, keep, place = tile_at(part * BLOCK, sample, X * Y * Z, channel, C, BLOCK)
    i, j, k = voxel // (Y * Z) * 2 - 1, voxel // Z % Y * 2 - 1, voxel % Z * 2 - 1
    corner = (((sample * FX + i) * FY + j) * FZ + k)[:, None] * C + channel[None, :]
    total = tl.zeros([BLOCK, CP], tl.float32) + read_row(add, channel, C)
    for start in range(0, 9, LINES):
        for offset in tl.static_range(LINES):
            line = start + offset
            ti = line // 3
            tj = line % 3
            beside = rows & (i + ti >= 0) & (i + ti < FX) & (j + tj >= 0) & (j + tj < FY)
            there = fine + corner + (ti * FY + tj) * FZ * C
            for tk in tl.static_range(3):
                near = beside & (k + tk >= 0) & (k + tk < FZ)
                value = tl.load(there + tk * C, mask=near[:, None] & (channel < C)[None, :], other=0.0)
                total += value * read_row(table + (line * 3 + tk) * C, channel, C)
    tl.store(out + place, total, mask=keep)


@triton.jit
def double(
    coarse, table, add, second, out, X, Y, Z, FX, FY, FZ,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Compute out[2 i + t - 1] = sum over i and t of table[t] coarse[i] + add.

    `add` is a bias (C) with BIAS. Without, it is of the shape of `out`, and out[2 i] has second[i] as well, which is of
    the shape of `coarse`.
    A program reads the eight coarse voxels from each of its own on once, and writes the eight fine voxels from 2 i on.
    Along an axis, 2 i comes from i by tap 1, and 2 i + 1 from i by tap 2 and from i + 1 by tap 0.
    """
    part, sample = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = (channel < C)[None, :]
    voxel, rows, _, place = tile_at(part * BLOCK, sample, X * Y * Z, channel, C, BLOCK)
    i, j, k = voxel // (Y * Z), voxel // Z % Y, voxel % Z
    values = ()
    for corner in tl.static_range(8):
        a = corner // 4
        b = corner // 2 % 2
        c = corner % 2
        near = rows & (i + a < X) & (j + b < Y) & (k + c < Z)
        values += (tl.load(coarse + place + ((a * Y + b) * Z + c) * C, mask=near[:, None] & valid, other=0.0),)
    for target in tl.static_range(8):
        p = target // 4
        q = target // 2 % 2
        r = target % 2
        fi, fj, fk = 2 * i + p, 2 * j + q, 2 * k + r
        exists = (rows & (fi < FX) & (fj < FY) & (fk < FZ))[:, None] & valid
        there = (((sample * FX + fi) * FY + fj) * FZ + fk)[:, None] * C + channel[None, :]
        if BIAS:
            total = tl.zeros([BLOCK, CP], tl.float32) + read_row(add, channel, C)
        else:
            total = tl.load(add + there, mask=exists, other=0.0).to(tl.float32)
            if target == 0:
                total += tl.load(second + place, mask=exists, other=0.0).to(tl.float32)
        for corner in tl.static_range(8):
            a = corner // 4
            b = corner // 2 % 2
            c = corner % 2
            if a <= p and b <= q and c <= r:
                tap = ((1 + p - 2 * a) * 3 + 1 + q - 2 * b) * 3 + 1 + r - 2 * c
                total += values[corner] * read_row(table + tap * C, channel, C)
        tl.store(out + there, total, mask=exists)


@triton.jit
def halve_weights(
    coarse, fine, partial, X, Y, Z, FX, FY, FZ, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the weights, (C, 27), and nine shares of that of the bias, (9, C), in rows of `partial`.

    The bias was added to the fine tensor with FINE, else to the coarse one. Each program computes the three taps along
    the last axis, so axis 2 of the grid of programs has length nine. The taps 1 and 2 meet every fine voxel once.
    """
    sample, part, line = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    ti, tj = line // 3, line % 3
    channel = tl.arange(0, CP)
    valid = channel < C
    before = tl.zeros([BLOCK, CP], tl.float32)
    middle = tl.zeros([BLOCK, CP], tl.float32)
    behind = tl.zeros([BLOCK, CP], tl.float32)
    bias = tl.zeros([BLOCK, CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel, rows, keep, place = tile_at(start, sample, X * Y * Z, channel, C, BLOCK)
        i, j, k = voxel // (Y * Z) * 2 + ti - 1, voxel // Z % Y * 2 + tj - 1, voxel % Z * 2
        near = rows & (i >= 0) & (i < FX) & (j >= 0) & (j < FY)
        there = fine + (((sample * FX + i) * FY + j) * FZ + k)[:, None] * C + channel[None, :]
        value = tl.load(coarse + place, mask=keep, other=0.0).to(tl.float32)
        at = tl.load(there, mask=near[:, None] & valid[None, :], other=0.0).to(tl.float32)
        after = tl.load(there + C, mask=(near & (k + 1 < FZ))[:, None] & valid[None, :], other=0.0).to(tl.float32)
        before += value * tl.load(there - C, mask=(near & (k > 0))[:, None] & valid[None, :], other=0.0)
        middle += value * at
        behind += value * after
        bias += at + after if FINE else value
    row = partial + (sample * SPLITS + part) * 36 * C
    tap = row + channel * 27 + line * 3
    tl.store(tap, tl.sum(before, axis=0), mask=valid)
    tl.store(tap + 1, tl.sum(middle, axis=0), mask=valid)
    tl.store(tap + 2, tl.sum(behind, axis=0), mask=valid)
    counted = (ti > 0) & (tj > 0) if FINE else line == 0
    tl.store(row + (27 + line) * C + channel, tl.where(counted, tl.sum(bias, axis=0), 0.0), mask=valid)
