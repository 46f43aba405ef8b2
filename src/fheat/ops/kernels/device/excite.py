"""Kernels of a one-group norm with squeeze-excitation behind it, on the product z of a convolution without its bias.

With y = norm(z + bias) and the means m of y over the voxels of a sample, one per channel,

    w = y * gate (+ skip),  gate = sigmoid(W2 relu(W1 m))

The means of y follow from those of z, so one pass over z finds all that the second pass needs; every program of the
second pass computes the gate of its sample again. In the same way all gradients of parameters, that of the bias too,
follow from two sums per channel, of g = dL/dw and of g times the normalised value.

z is (samples, voxels, C), float32 or rounded. Where a voxel became a patch of SIDE voxels per axis, the rows of z are
patch after patch, and those of w, skip and dL/dw in the order of the grid.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import (
    add_moments,
    norm_backward,
    read_moments,
    read_row,
    sigmoid,
    store_pair,
    tile_at,
)


@triton.jit
def grid_place(voxel, sample, voxels, channel, Y, Z, C: tl.constexpr, SIDE: tl.constexpr):
    """Return the offsets, in a tensor in the order of the grid, of voxels that z has patch after patch.

    Patches are on a grid of (..., Y, Z).
    """
    if SIDE > 1:
        patch, tap = voxel // (SIDE * SIDE * SIDE), voxel % (SIDE * SIDE * SIDE)
        a = patch // (Y * Z) * SIDE + tap // (SIDE * SIDE)
        b = patch // Z % Y * SIDE + tap // SIDE % SIDE
        c = patch % Z * SIDE + tap % SIDE
        voxel = (a * Y * SIDE + b) * Z * SIDE + c
    return (sample * voxels + voxel)[:, None] * C + channel[None, :]


@triton.jit
def read_shares(
    shares, first, width, channel, C: tl.constexpr, CP: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr
):
    """Return (1, CP), the sums over SPLITS rows of (rows, width) from row `first` on, always in the same order."""
    row = first + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, CP], tl.float32)
    for start in range(0, SPLITS, ROWS):
        place = (start + row)[:, None] * width + channel[None, :]
        total += tl.load(shares + place, mask=(channel < C)[None, :], other=0.0)
    return tl.sum(total, axis=0)[None, :]


@triton.jit
def weight_places(channel, C: tl.constexpr, R: tl.constexpr, RP: tl.constexpr):
    """Return the offsets of W1 and of the transpose of W2, both as (RP, CP), and which elements exist."""
    unit, column = tl.arange(0, RP)[:, None], channel[None, :]
    return unit * C + column, column * R + unit, (unit < R) & (column < C)


@triton.jit
def hidden_units(mean, first):
    """Return relu(W1 m), (RP, 1), from W1 and the means m, (1, CP)."""
    return tl.maximum(tl.sum(first * mean, axis=1), 0.0)[:, None]


@triton.jit
def find_gate(hidden, second):
    """Return sigmoid(W2 h), (1, CP), from the hidden units h, (RP, 1), and the transpose of W2."""
    return sigmoid(tl.sum(second * hidden, axis=0))[None, :]


@triton.jit
def excite_moments(
    z, bias, moments, sums, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute the moments of z + bias, and its sums over voxels, (samples, SPLITS, C)."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    offset = read_row(bias, channel, C)
    total = tl.zeros([CP], tl.float32)
    count, centre, squares = 0.0, 0.0, 0.0
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        value = tl.where(keep, tl.load(z + place, mask=keep, other=0.0).to(tl.float32) + offset, 0.0)
        total += tl.sum(value, axis=0)
        count, centre, squares = add_moments(count, centre, squares, value, keep, start, voxels, C)
    program = sample * SPLITS + part
    store_pair(moments, program, centre, squares)
    tl.store(sums + program * C + channel, total, mask=channel < C)


@triton.jit
def excite_forward(
    z, bias, moments, sums, scale, shift, squeeze, excite, skip, out, voxels, span, Y, Z, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    R: tl.constexpr, RP: tl.constexpr, ROWS: tl.constexpr, SIDE: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Compute out = w; with ADD, plus `skip`."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, shifted, offset = read_row(scale, channel, C), read_row(shift, channel, C), read_row(bias, channel, C)
    normal_mean = (read_shares(sums, sample * SPLITS, C, channel, C, CP, SPLITS, ROWS) / voxels - mean) * deviation
    down, up, inside = weight_places(channel, C, R, RP)
    hidden = hidden_units(normal_mean * factor + shifted, tl.load(squeeze + down, mask=inside, other=0.0))
    gate = find_gate(hidden, tl.load(excite + up, mask=inside, other=0.0))
    for start in range(part * span, part * span + span, BLOCK):
        voxel, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(z + place, mask=keep, other=0.0).to(tl.float32) + offset - mean) * deviation
        value = (normal * factor + shifted) * gate
        there = grid_place(voxel, sample, voxels, channel, Y, Z, C, SIDE)
        if ADD:
            value += tl.load(skip + there, mask=keep, other=0.0)
        tl.store(out + there, value, mask=keep)


@triton.jit
def excite_sums(
    output_gradient, z, bias, moments, shares, voxels, span, Y, Z, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute the sums over voxels of g = dL/dw times the normalised value, and of g: (samples, SPLITS, 2 C)."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    offset = read_row(bias, channel, C)
    along = tl.zeros([CP], tl.float32)
    plain = tl.zeros([CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        there = grid_place(voxel, sample, voxels, channel, Y, Z, C, SIDE)
        gradient = tl.load(output_gradient + there, mask=keep, other=0.0)
        normal = (tl.load(z + place, mask=keep, other=0.0).to(tl.float32) + offset - mean) * deviation
        along += tl.sum(gradient * normal, axis=0)
        plain += tl.sum(gradient, axis=0)
    program = sample * SPLITS + part
    tl.store(shares + program * 2 * C + channel, along, mask=channel < C)
    tl.store(shares + program * 2 * C + C + channel, plain, mask=channel < C)


@triton.jit
def excite_gradient(
    output_gradient, z, bias, moments, sums, shares, scale, shift, squeeze, excite, z_gradient, partial,
    voxels, span, Y, Z, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    R: tl.constexpr, RP: tl.constexpr, ROWS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute dL/dz, and the shares of a sample in the gradients of scale, shift, bias, W1 and W2, one behind another.

    With the sums A of g n and B of g, n the normalised value and nbar its mean over voxels, s and t scale and shift:

        dL/dgate = s A + t B,  dL/dy = g gate + dL/dm / voxels
        dL/ds = gate A + nbar dL/dm,  dL/dt = gate B + dL/dm
        dL/dbias = (s dL/dt - (sum_c s dL/dt + nbar sum_c s dL/ds) / C) * deviation
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, shifted, offset = read_row(scale, channel, C), read_row(shift, channel, C), read_row(bias, channel, C)
    normal_mean = (read_shares(sums, sample * SPLITS, C, channel, C, CP, SPLITS, ROWS) / voxels - mean) * deviation
    along = read_shares(shares, sample * SPLITS, 2 * C, channel, C, CP, SPLITS, ROWS)
    plain = read_shares(shares + C, sample * SPLITS, 2 * C, channel, C, CP, SPLITS, ROWS)
    down, up, inside = weight_places(channel, C, R, RP)
    first = tl.load(squeeze + down, mask=inside, other=0.0)
    second = tl.load(excite + up, mask=inside, other=0.0)
    channel_mean = normal_mean * factor + shifted
    hidden = hidden_units(channel_mean, first)
    gate = find_gate(hidden, second)
    slope = (factor * along + shifted * plain) * gate * (1.0 - gate)
    hidden_slope = tl.where(hidden > 0.0, tl.sum(second * slope, axis=1)[:, None], 0.0)
    mean_slope = tl.sum(first * hidden_slope, axis=0)[None, :]
    scale_slope = gate * along + normal_mean * mean_slope
    shift_slope = gate * plain + mean_slope
    sum_first, sum_second = tl.sum(factor * shift_slope), tl.sum(factor * scale_slope)

    if part == 0:
        bias_slope = (factor * shift_slope - (sum_first + normal_mean * sum_second) / C) * deviation
        share = partial + sample * (3 + 2 * R) * C
        row, valid = channel[None, :], (channel < C)[None, :]
        tl.store(share + row, scale_slope, mask=valid)
        tl.store(share + C + row, shift_slope, mask=valid)
        tl.store(share + 2 * C + row, bias_slope, mask=valid)
        tl.store(share + 3 * C + down, hidden_slope * channel_mean, mask=inside)
        tl.store(share + (3 + R) * C + up, hidden * slope, mask=inside)

    each = mean_slope / voxels
    for start in range(part * span, part * span + span, BLOCK):
        voxel, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        there = grid_place(voxel, sample, voxels, channel, Y, Z, C, SIDE)
        gradient = tl.load(output_gradient + there, mask=keep, other=0.0) * gate + each
        normal = (tl.load(z + place, mask=keep, other=0.0).to(tl.float32) + offset - mean) * deviation
        value = norm_backward(gradient, normal, factor, deviation, sum_first, sum_second, voxels * 1.0 * C)
        tl.store(z_gradient + place, value, mask=keep)
