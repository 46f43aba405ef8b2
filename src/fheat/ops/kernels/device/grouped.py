"""Kernels of a convolution with as many groups as input channels, of any odd side, and of its gradients.

Channel c of the output reads channel c // SHARE of the input. They suit grids of up to a few thousand voxels, where a
program waits for memory most of the time: the taps of a plane are unrolled, so that it waits for all of them at once.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import gelu_terms, read_row, tile_at


@triton.jit
def near_tile(
    x, plane, line, voxel, sample, channel, X, Y, Z, rows, valid, C: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Return the values that a tap of the kernel reads for the voxels of a tile, zeros outside the grid.

    Tap number SIDE^2 plane + line; `x` (samples, X Y Z, C), of which the channels `channel` are read.
    """
    i = voxel // (Y * Z) + plane - SIDE // 2
    j = voxel // Z % Y + line // SIDE - SIDE // 2
    k = voxel % Z + line % SIDE - SIDE // 2
    near = rows & (i >= 0) & (i < X) & (j >= 0) & (j < Y) & (k >= 0) & (k < Z)
    place = (((sample * X + i) * Y + j) * Z + k)[:, None] * C + channel[None, :]
    return tl.load(x + place, mask=near[:, None] & valid[None, :], other=0.0).to(tl.float32)


@triton.jit
def grouped(
    x, table, out, active, X, Y, Z,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SHARE: tl.constexpr, SIDE: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    """Compute out[v, c] = sum over taps of table[tap, c] x[v + tap, c // SHARE], and with GELU active = gelu(out).

    Each program computes one tile. `x` (samples, X Y Z, C / SHARE), `table` (SIDE^3, C), `out` (samples, X Y Z, C).
    """
    part, sample = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    voxel, rows, keep, place = tile_at(part * BLOCK, sample, X * Y * Z, channel, C, BLOCK)
    total = tl.zeros([BLOCK, CP], tl.float32)
    for plane in range(SIDE):
        for line in tl.static_range(SIDE * SIDE):
            value = near_tile(
                x, plane, line, voxel, sample, channel // SHARE, X, Y, Z, rows, valid, C // SHARE, SIDE
            )  # fmt: skip
            total += value * read_row(table + (plane * SIDE * SIDE + line) * C, channel, C)
    tl.store(out + place, total, mask=keep)
    if GELU:
        above, _ = gelu_terms(total)
        tl.store(active + place, total * above, mask=keep)


@triton.jit
def grouped_back(
    output_gradient, table, out, X, Y, Z,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SHARE: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute the input gradient: out[v, i] = sum over taps and s of table[tap, c] gradient[v - tap, c].

    c = SHARE i + s, with s from 0 to SHARE - 1.
    Here C counts the channels of the input. `output_gradient` (samples, X Y Z, SHARE C), `table` (SIDE^3, SHARE C).
    """
    part, sample = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    voxel, rows, keep, place = tile_at(part * BLOCK, sample, X * Y * Z, channel, C, BLOCK)
    total = tl.zeros([BLOCK, CP], tl.float32)
    for plane in range(SIDE):
        for line in tl.static_range(SIDE * SIDE):
            row = SIDE * SIDE * SIDE - 1 - (plane * SIDE * SIDE + line)
            for s in tl.static_range(SHARE):
                value = near_tile(
                    output_gradient, plane, line, voxel, sample, channel * SHARE + s,
                    X, Y, Z, rows, valid, C * SHARE, SIDE,
                )  # fmt: skip
                weight = tl.load(table + row * C * SHARE + channel * SHARE + s, mask=valid, other=0.0)
                total += value * weight[None, :]
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
    plane, line = tap // (SIDE * SIDE), tap % (SIDE * SIDE)
    voxels = X * Y * Z
    channel = tl.arange(0, CP)
    valid = channel < C
    total = tl.zeros([BLOCK, CP], tl.float32)
    for start in range(0, voxels, BLOCK):
        voxel, rows, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0)
        total += gradient * near_tile(
            x, plane, line, voxel, sample, channel // SHARE, X, Y, Z, rows, valid, C // SHARE, SIDE
        )  # fmt: skip
    taps = SIDE * SIDE * SIDE
    tl.store(partial + (sample * C + channel) * taps + tap, tl.sum(total, axis=0), mask=valid)
