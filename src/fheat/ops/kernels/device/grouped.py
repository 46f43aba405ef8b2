"""Kernels of a convolution with as many groups as input channels, of any odd side, and of the gradient of its weights.

Channel c of the output reads channel c // SHARE of the input. They suit grids of up to a few thousand voxels.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import read_row, tile_at


@triton.jit
def near_tile(
    x, tap, voxel, sample, channel, X, Y, Z, rows, valid, C: tl.constexpr, SHARE: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Return the input values that a tap of the kernel reads for the voxels of a tile, zeros outside the grid."""
    i = voxel // (Y * Z) + tap // (SIDE * SIDE) - SIDE // 2
    j = voxel // Z % Y + tap // SIDE % SIDE - SIDE // 2
    k = voxel % Z + tap % SIDE - SIDE // 2
    near = rows & (i >= 0) & (i < X) & (j >= 0) & (j < Y) & (k >= 0) & (k < Z)
    place = (((sample * X + i) * Y + j) * Z + k)[:, None] * (C // SHARE) + (channel // SHARE)[None, :]
    return tl.load(x + place, mask=near[:, None] & valid[None, :], other=0.0).to(tl.float32)


@triton.jit
def grouped(
    x, table, out, X, Y, Z,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SHARE: tl.constexpr, SIDE: tl.constexpr,
    FLIP: tl.constexpr,
):  # fmt: skip
    """Compute out[v, c] = sum over taps of table[tap, c] x[v + tap, c // SHARE]; FLIP turns the kernel round.

    Each program computes one tile. `x` (samples, X Y Z, C / SHARE), `table` (SIDE^3, C), `out` (samples, X Y Z, C).
    """
    part, sample = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    voxel, rows, keep, place = tile_at(part * BLOCK, sample, X * Y * Z, channel, C, BLOCK)
    total = tl.zeros([BLOCK, CP], tl.float32)
    for tap in range(SIDE * SIDE * SIDE):
        value = near_tile(x, tap, voxel, sample, channel, X, Y, Z, rows, valid, C, SHARE, SIDE)
        row = SIDE * SIDE * SIDE - 1 - tap if FLIP else tap
        total += value * read_row(table + row * C, channel, C)
    tl.store(out + place, total, mask=keep)


@triton.jit
def grouped_weights(
    output_gradient, x, partial, X, Y, Z,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SHARE: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Store the share of each sample in the gradient of the weights, `partial` (samples, C SIDE^3).

    Each program computes one tap of one sample: the grid of programs is (samples, SIDE^3).
    """
    sample, tap = tl.program_id(0), tl.program_id(1)
    voxels = X * Y * Z
    channel = tl.arange(0, CP)
    valid = channel < C
    total = tl.zeros([BLOCK, CP], tl.float32)
    for start in range(0, voxels, BLOCK):
        voxel, rows, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0)
        total += gradient * near_tile(x, tap, voxel, sample, channel, X, Y, Z, rows, valid, C, SHARE, SIDE)
    taps = SIDE * SIDE * SIDE
    tl.store(partial + (sample * C + channel) * taps + tap, tl.sum(total, axis=0), mask=valid)
