"""Kernels between the products of light blocks with more channels than the matrices of one program can have.

The library computes the products. An operand is (rows, P), where P > C is a multiple of eight: C values, a one, zeros.
The column of ones meets the bias in a product, and gives its gradient in another. Other tensors are (rows, C). Rows are
the voxels of all samples, and each program has `span` of one sample, in TILES tiles.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.mixer import store_denominator
from fheat.ops.kernels.device.tiles import (
    rational_terms,
    read_moments,
    read_row,
    sigmoid,
    store_pair,
    sum_four,
    sum_two,
    tile_at,
)


@triton.jit
def store_operand(out, value, voxel, rows, sample, voxels, channel, C: tl.constexpr, P: tl.constexpr):
    """Store a tile of values as rows of an operand."""
    row = ((sample * voxels + voxel) * P)[:, None]
    extra = tl.arange(0, 8)[None, :]
    tl.store(out + row + channel[None, :], value, mask=rows[:, None] & (channel < C)[None, :])
    tl.store(out + row + C + extra, tl.where(extra == 0, 1.0, 0.0), mask=rows[:, None] & (extra < P - C))


@triton.jit
def write_operand(
    x, out, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute the operand of x."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    for tile in range(TILES):
        voxel, rows, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        store_operand(out, tl.load(x + place, mask=keep, other=0.0), voxel, rows, sample, voxels, channel, C, P)


@triton.jit
def write_normal(
    x, moments, scale, shift, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute the operand of norm(x)."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    for tile in range(TILES):
        voxel, rows, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(x + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation
        store_operand(out, normal * factor + offset, voxel, rows, sample, voxels, channel, C, P)


@triton.jit
def write_gated(
    t, moments, scale, shift, g, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute the operand of silu(g) norm(t)."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    for tile in range(TILES):
        voxel, rows, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(t + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation
        gate = tl.load(g + place, mask=keep, other=0.0).to(tl.float32)
        value = gate * sigmoid(gate) * (normal * factor + offset)
        store_operand(out, value, voxel, rows, sample, voxels, channel, C, P)


@triton.jit
def gated_slopes(
    inner, t, moments, scale, shift, g, normal_gradient, gate_gradient, sums, partial, width, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute dL/dnorm(t) and dL/dg from the gradient `inner` of silu(g) norm(t), and two sums.

    The gradients of scale and shift begin each row of `partial`; `sums` has what dL/dt needs. Rows of `gate_gradient`
    are the second halves of rows of 2 C.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    scale_gradient, shift_gradient = tl.zeros([BLOCK, CP], tl.float32), tl.zeros([BLOCK, CP], tl.float32)
    for tile in range(TILES):
        voxel, _, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(t + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation
        gate = tl.load(g + place, mask=keep, other=0.0).to(tl.float32)
        arriving = tl.load(inner + place, mask=keep, other=0.0).to(tl.float32)
        soft = sigmoid(gate)
        swish = gate * soft
        value = arriving * swish
        scale_gradient += value * normal
        shift_gradient += value
        tl.store(normal_gradient + place, value, mask=keep)
        slope = arriving * (normal * factor + offset) * (soft + swish * (1.0 - soft))
        tl.store(gate_gradient + place + (sample * voxels + voxel + 1)[:, None] * C, slope, mask=keep)
    program = sample * SPLITS + part
    stretched, shifted = sum_two(scale_gradient, shift_gradient, 0)
    row = partial + program * width + channel
    tl.store(row, stretched, mask=channel < C)
    tl.store(row + C, shifted, mask=channel < C)
    factor = tl.load(scale + channel, mask=channel < C, other=0.0)
    shifted, stretched = sum_two(shifted * factor, stretched * factor, 0)
    store_pair(sums, program, shifted, stretched)


@triton.jit
def write_rational(
    h, numerator, denominator, out, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Compute the operand of F(h); F is the rational function."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    for tile in range(TILES):
        voxel, rows, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        value = tl.load(h + place, mask=keep, other=0.0).to(tl.float32)
        above, below, _, _ = rational_terms(value, numerator, denominator, channel * GROUPS // C, channel < C)
        store_operand(out, above / (1.0 + tl.abs(below)), voxel, rows, sample, voxels, channel, C, P)


@triton.jit
def rational_slopes(
    inner, h, numerator, denominator, out, partial, width, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr,
    GROUPS: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dh from the gradient `inner` of F(h), and the gradients of the function's coefficients.

    These begin each row of `partial`: six of the numerator, the sums of up h^k for k from 0 to 5, and GROUPS x 4 of the
    denominator, the sums of down h^k for k from 1 to 4 over the channels of a group.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    totals = ()
    for _index in tl.static_range(10):
        totals += (tl.zeros([BLOCK, CP], tl.float32),)
    for tile in range(TILES):
        _, _, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        value = tl.load(h + place, mask=keep, other=0.0).to(tl.float32)
        arriving = tl.load(inner + place, mask=keep, other=0.0).to(tl.float32)
        above, below, above_derivative, below_derivative = rational_terms(
            value, numerator, denominator, channel * GROUPS // C, channel < C
        )
        inverse = 1.0 / (1.0 + tl.abs(below))
        up = arriving * inverse
        fall = up * above * inverse
        down = tl.where(below < 0, fall, -fall)
        tl.store(out + place, up * above_derivative + down * below_derivative, mask=keep)
        grown = ()
        for index in tl.static_range(6):
            grown += (totals[index] + up,)
            up = up * value
        for index in tl.static_range(4):
            down = down * value
            grown += (totals[6 + index] + down,)
        totals = grown
    row = partial + (sample * SPLITS + part) * width
    a0, a1, a2, a3 = sum_four(totals[0], totals[1], totals[2], totals[3], 0)
    a4, a5, b1, b2 = sum_four(totals[4], totals[5], totals[6], totals[7], 0)
    b3, b4 = sum_two(totals[8], totals[9], 0)
    a0, a1, a2, a3 = sum_four(a0, a1, a2, a3, 0)
    a4, a5 = sum_two(a4, a5, 0)
    store_pair(row, 0, a0, a1)
    store_pair(row, 1, a2, a3)
    store_pair(row, 2, a4, a5)
    store_denominator(row + 6, b1, b2, b3, b4, channel, C, GROUPS, GP)


@triton.jit
def write_weights(weight, bias, out, rows, C: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr):
    """Compute [W b 0], (rows, P), from W (rows, C) and b (rows), BLOCK elements for each program."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // P, place % P
    exists = row < rows
    value = tl.load(weight + row * C + column, mask=exists & (column < C), other=0.0)
    value += tl.load(bias + row, mask=exists & (column == C), other=0.0)
    tl.store(out + place, value, mask=exists)
