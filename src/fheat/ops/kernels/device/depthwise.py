"""Kernels of the 3x3x3 depthwise convolution with a residual beside it."""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import depthwise_tile, tile_at


@triton.jit
def add_depthwise(
    residual, x, weight, out, X, Y, Z, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    """out = residual + depthwise(x), or with FLIP the transposed one, which takes gradients back."""
    sample, part = tl.program_id(0), tl.program_id(1)
    voxels = X * Y * Z
    channel = tl.arange(0, CP)
    for start in range(part * span, part * span + span, BLOCK):
        voxel, rows, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        value = depthwise_tile(x, weight, sample, voxel, channel, rows, X, Y, Z, C, FLIP)
        tl.store(out + place, tl.load(residual + place, mask=keep, other=0.0) + value, mask=keep)


@triton.jit
def depthwise_weights(
    slope, x, partial, width, at, X, Y, Z, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Gradient of the weights (C, 27), and of the bias behind them where BIAS, into rows of `partial` from `at` on.

    One tap per program: axis 2 of the grid.
    """
    sample, part, tap = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    di, dj, dk = tap // 9 - 1, tap // 3 % 3 - 1, tap % 3 - 1
    voxels = X * Y * Z
    channel = tl.arange(0, CP)
    valid = channel < C
    total = tl.zeros([CP], tl.float32)
    bias = tl.zeros([CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        rows = voxel < voxels
        i, j, k = voxel // (Y * Z) + di, voxel // Z % Y + dj, voxel % Z + dk
        near = rows & (i >= 0) & (i < X) & (j >= 0) & (j < Y) & (k >= 0) & (k < Z)
        here = (sample * voxels + voxel)[:, None] * C + channel[None, :]
        there = here + ((di * Y + dj) * Z + dk) * C
        gradient = tl.load(slope + here, mask=rows[:, None] & valid[None, :], other=0.0)
        value = tl.load(x + there, mask=near[:, None] & valid[None, :], other=0.0)
        total += tl.sum(gradient * value, axis=0)
        if BIAS:
            bias += tl.sum(gradient, axis=0)
    row = partial + (sample * SPLITS + part) * width + at
    tl.store(row + channel * 27 + tap, total, mask=valid)
    if BIAS:
        if tap == 0:
            tl.store(row + 27 * C + channel, bias, mask=valid)
