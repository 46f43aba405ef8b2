"""Kernels of 1x1x1 convolutions from one channel, or to few: memory bounds them, so products need no tensor cores.

Tensors are (voxels, channels) with the voxels of all samples together. Values are float32, whatever type `narrow`
stores its results in. A program's row of `partial` holds its share of the gradients of the weight and of the bias.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import read_row, tile_at


@triton.jit
def narrow(
    x, weight, bias, out, voxels,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute out[v, n] = sum over c of x[v, c] weight[n, c] + bias[n]; each program computes one tile."""
    channel = tl.arange(0, CP)
    voxel, rows, keep, place = tile_at(tl.program_id(0) * BLOCK, 0, voxels, channel, C, BLOCK)
    value = tl.load(x + place, mask=keep, other=0.0)
    for n in tl.static_range(N):
        total = tl.sum(value * read_row(weight + n * C, channel, C), axis=1) + tl.load(bias + n)
        tl.store(out + voxel * N + n, total, mask=rows)


@triton.jit
def narrow_gradients(
    output_gradient, x, weight, out, partial, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute out[v, c] = sum over n of g[v, n] weight[n, c], and the gradients of weight (N, C) and bias (N)."""
    part, channel = tl.program_id(0), tl.arange(0, CP)
    weights, totals, biases = (), (), ()
    for n in tl.static_range(N):
        weights += (read_row(weight + n * C, channel, C),)
        totals += (tl.zeros([BLOCK, CP], tl.float32),)
        biases += (tl.zeros([BLOCK], tl.float32),)
    for start in range(part * span, part * span + span, BLOCK):
        voxel, rows, keep, place = tile_at(start, 0, voxels, channel, C, BLOCK)
        value = tl.load(x + place, mask=keep, other=0.0)
        inward = tl.zeros([BLOCK, CP], tl.float32)
        grown, added = (), ()
        for n in tl.static_range(N):
            gradient = tl.load(output_gradient + voxel * N + n, mask=rows, other=0.0).to(tl.float32)
            inward += gradient[:, None] * weights[n]
            grown += (totals[n] + gradient[:, None] * value,)
            added += (biases[n] + gradient,)
        totals = grown
        biases = added
        tl.store(out + place, inward, mask=keep)
    row = partial + part * (N * C + N)
    for n in tl.static_range(N):
        tl.store(row + n * C + channel, tl.sum(totals[n], axis=0), mask=channel < C)
        tl.store(row + N * C + n, tl.sum(biases[n]))


@triton.jit
def outer(
    x, weight, bias, out, voxels,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute out[v, c] = x[v] weight[c] + bias[c]; each program computes one tile."""
    channel = tl.arange(0, CP)
    voxel, rows, keep, place = tile_at(tl.program_id(0) * BLOCK, 0, voxels, channel, C, BLOCK)
    value = tl.load(x + voxel, mask=rows, other=0.0)[:, None]
    tl.store(out + place, value * read_row(weight, channel, C) + read_row(bias, channel, C), mask=keep)


@triton.jit
def outer_gradients(
    output_gradient, x, partial, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of weight, sum over v of g[v, c] x[v], and bias, sum over v of g[v, c]."""
    part, channel = tl.program_id(0), tl.arange(0, CP)
    weight_gradient, bias_gradient = tl.zeros([BLOCK, CP], tl.float32), tl.zeros([BLOCK, CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel, rows, keep, place = tile_at(start, 0, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0)
        weight_gradient += gradient * tl.load(x + voxel, mask=rows, other=0.0)[:, None]
        bias_gradient += gradient
    row = partial + part * 2 * C + channel
    tl.store(row, tl.sum(weight_gradient, axis=0), mask=channel < C)
    tl.store(row + C, tl.sum(bias_gradient, axis=0), mask=channel < C)
