"""Kernels of the channel mixer: norm, product, rational function and product, and all their gradients in one pass.

A program's row of `partial` holds its share of the gradients of W1, W2, b1, b2, scale, shift, numerator (6) and
denominator (GROUPS x 4), in this order; the columns behind them belong to other kernels.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import (
    add_moments,
    choose_four,
    product,
    rational_terms,
    read_matrix,
    read_moments,
    read_norms,
    read_row,
    rounded,
    store_pair,
    store_vectors,
    sum_four,
    through_norm,
    tile_at,
)


@triton.jit
def mixer_forward(
    x, moments, scale, shift, weight1, bias1, numerator, denominator, weight2, bias2, out, out_moments,
    voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, GROUPS: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Compute out = W2 F(W1 norm(x) + b1) + b2 and the moments of out; F is the rational function."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    square = valid[:, None] & valid[None, :]
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    first = tl.load(weight1 + channel[None, :] * C + channel[:, None], mask=square, other=0.0)
    second = tl.load(weight2 + channel[None, :] * C + channel[:, None], mask=square, other=0.0)
    add1 = read_row(bias1, channel, C)
    add2 = read_row(bias2, channel, C)
    count, centre, squares = 0.0, 0.0, 0.0
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(x + place, mask=keep, other=0.0) - mean) * deviation
        h = product(tl.where(keep, normal * factor + offset, 0.0), first, DOT) + add1
        above, below, _, _ = rational_terms(h, numerator, denominator, channel * GROUPS // C, valid)
        value = product(above / (1.0 + tl.abs(below)), second, DOT) + add2
        tl.store(out + place, value, mask=keep)
        count, centre, squares = add_moments(count, centre, squares, value, keep, start, voxels, C)
    store_pair(out_moments, sample * SPLITS + part, centre, squares)


@triton.jit
def add_tile(totals, up, down, h, before, after, by_normal, value):
    """Return fourteen totals, (BLOCK, CP) each, with the values of one tile more.

    These are up h^k for k from 0 to 5 and down h^k for k from 1 to 4, whose sums are the gradients of the rational
    function's coefficients, and the gradients of b1, b2, scale and shift.
    """
    added = ()
    for _ in tl.static_range(6):
        added += (up,)
        up = up * h
    for _ in tl.static_range(4):
        down = down * h
        added += (down,)
    added += (before, after, by_normal, value)
    grown = ()
    for index in tl.static_range(14):
        grown += (totals[index] + added[index],)
    return grown


@triton.jit
def store_totals(row, sums, program, totals, factor, channel, C: tl.constexpr, GROUPS: tl.constexpr, GP: tl.constexpr):
    """Store the gradients of b1, b2, scale, shift, numerator and denominator from the totals of `add_tile`.

    Store in `sums` what dL/dx needs from dL/dnorm(x); `factor` is the scale. GP is the next power of two from GROUPS.
    """
    before, after, by_normal, value = sum_four(totals[10], totals[11], totals[12], totals[13], 0)
    store_vectors(row, before, after, by_normal, value, channel, C, 4)
    row += 4 * C
    a0, a1, a2, a3 = sum_four(totals[0], totals[1], totals[2], totals[3], 0)
    a4, a5, b1, b2 = sum_four(totals[4], totals[5], totals[6], totals[7], 0)
    b3, b4, shifted, stretched = sum_four(totals[8], totals[9], totals[13] * factor, totals[12] * factor, 0)
    a0, a1, a2, a3 = sum_four(a0, a1, a2, a3, 0)
    a4, a5, shifted, stretched = sum_four(a4, a5, shifted, stretched, 0)
    store_pair(sums, program, shifted, stretched)
    store_pair(row, 0, a0, a1)
    store_pair(row, 1, a2, a3)
    store_pair(row, 2, a4, a5)
    store_denominator(row + 6, b1, b2, b3, b4, channel, C, GROUPS, GP)


@triton.jit
def store_denominator(row, b1, b2, b3, b4, channel, C: tl.constexpr, GROUPS: tl.constexpr, GP: tl.constexpr):
    """Store the gradients of the denominator, (GROUPS, 4), from sums over the voxels for each channel."""
    four, one = tl.arange(0, 4)[None, :], tl.arange(0, GP)[:, None]
    mine = one == (channel * GROUPS // C)[None, :]
    b1, b2 = tl.where(mine, b1[None, :], 0.0), tl.where(mine, b2[None, :], 0.0)
    b3, b4 = tl.where(mine, b3[None, :], 0.0), tl.where(mine, b4[None, :], 0.0)
    b1, b2, b3, b4 = sum_four(b1, b2, b3, b4, 1)
    coefficients = choose_four(four, b1[:, None], b2[:, None], b3[:, None], b4[:, None])
    tl.store(row + one * 4 + four, coefficients, mask=one < GROUPS)


@triton.jit
def mixer_backward(
    output_gradient, y, y_moments, y_sums, y_scale, x, moments, scale, shift, weight1, bias1, numerator, denominator,
    weight2, out, sums, partial, width, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, GROUPS: tl.constexpr,
    GP: tl.constexpr, DOT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dnorm(x) and the gradients of parameters from dL/dnorm(y), where y is the mixer's output.

    A program adds up TILES tiles in the totals of `add_tile`, and their rows once, at the end. Matrices of up to 64
    channels are read once; larger ones would fill the registers.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    square = valid[:, None] & valid[None, :]
    group = channel * GROUPS // C
    into, onto = channel[None, :] * C + channel[:, None], channel[:, None] * C + channel[None, :]
    if CP <= 64:
        into1 = read_matrix(weight1, into, square, DOT)
        onto1 = read_matrix(weight1, onto, square, DOT)
        onto2 = read_matrix(weight2, onto, square, DOT)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    y_factor, add1 = read_row(y_scale, channel, C), read_row(bias1, channel, C)
    mean, deviation, y_mean, y_deviation, first, second = read_norms(
        moments, y_moments, y_sums, sample, voxels, span, eps, C, SPLITS
    )
    weight1_gradient, weight2_gradient = tl.zeros([CP, CP], tl.float32), tl.zeros([CP, CP], tl.float32)
    totals = ()
    for _index in tl.static_range(14):
        totals += (tl.zeros([BLOCK, CP], tl.float32),)
    for tile in range(TILES):
        _, _, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        here = tl.load(x + place, mask=keep, other=0.0)
        there = tl.load(y + place, mask=keep, other=0.0)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0)
        into1 = read_matrix(weight1, into, square, DOT) if CP > 64 else into1
        normal = tl.where(keep, (here - mean) * deviation, 0.0)
        scaled = rounded(tl.where(keep, normal * factor + offset, 0.0), DOT)
        h = product(scaled, into1, DOT) + add1
        above, below, above_derivative, below_derivative = rational_terms(h, numerator, denominator, group, valid)
        inverse = 1.0 / (1.0 + tl.abs(below))
        active = above * inverse
        after = through_norm(gradient, there, keep, y_mean, y_deviation, y_factor, first, second, voxels * 1.0 * C)
        arriving = rounded(after, DOT)
        weight2_gradient += product(tl.trans(arriving), active, DOT)
        onto2 = read_matrix(weight2, onto, square, DOT) if CP > 64 else onto2
        up = tl.where(keep, product(arriving, onto2, DOT), 0.0) * inverse
        down = tl.where(below < 0, up * active, -up * active)
        before = up * above_derivative + down * below_derivative
        leaving = rounded(before, DOT)
        weight1_gradient += product(tl.trans(leaving), scaled, DOT)
        onto1 = read_matrix(weight1, onto, square, DOT) if CP > 64 else onto1
        value = product(leaving, onto1, DOT)
        tl.store(out + place, value, mask=keep)
        totals = add_tile(totals, up, down, h, before, after, value * normal, value)
    program = sample * SPLITS + part
    row = partial + program * width
    tl.store(row + onto, weight1_gradient, mask=square)
    tl.store(row + C * C + onto, weight2_gradient, mask=square)
    store_totals(row + 2 * C * C, sums, program, totals, factor, channel, C, GROUPS, GP)
