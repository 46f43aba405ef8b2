"""Kernels of FHEAT around its gate: the projection before T, the gated output behind it, and their gradients."""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import (
    add_moments,
    product,
    read_matrix,
    read_moments,
    read_norms,
    read_row,
    read_sums,
    rounded,
    sigmoid,
    store_pair,
    store_vectors,
    sum_four,
    sum_two,
    through_norm,
    tile_at,
)


@triton.jit
def project_forward(
    x, weight, bias, value_out, gate_out, moments, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute [v, g] = W x + bias and the moments of v."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    square = valid[:, None] & valid[None, :]
    into = channel[None, :] * C + channel[:, None]
    value_weight = tl.load(weight + into, mask=square, other=0.0)
    gate_weight = tl.load(weight + C * C + into, mask=square, other=0.0)
    value_bias = read_row(bias, channel, C)
    gate_bias = read_row(bias + C, channel, C)
    count, centre, squares = 0.0, 0.0, 0.0
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        local = tl.load(x + place, mask=keep, other=0.0)
        value = product(local, value_weight, DOT) + value_bias
        tl.store(value_out + place, value, mask=keep)
        tl.store(gate_out + place, product(local, gate_weight, DOT) + gate_bias, mask=keep)
        count, centre, squares = add_moments(count, centre, squares, value, keep, start, voxels, C)
    store_pair(moments, sample * SPLITS + part, centre, squares)


@triton.jit
def gated_forward(
    t, moments, scale, shift, g, weight, bias, out, out_moments, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute out = W (silu(g) norm(t)) + bias and the moments of out."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    square = valid[:, None] & valid[None, :]
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    matrix = tl.load(weight + channel[None, :] * C + channel[:, None], mask=square, other=0.0)
    add = read_row(bias, channel, C)
    count, centre, squares = 0.0, 0.0, 0.0
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(t + place, mask=keep, other=0.0) - mean) * deviation
        gate = tl.load(g + place, mask=keep, other=0.0)
        value = product(gate * sigmoid(gate) * (normal * factor + offset), matrix, DOT) + add
        tl.store(out + place, value, mask=keep)
        count, centre, squares = add_moments(count, centre, squares, value, keep, start, voxels, C)
    store_pair(out_moments, sample * SPLITS + part, centre, squares)


@triton.jit
def gated_backward(
    output_gradient, y, y_moments, y_sums, y_scale, t, moments, scale, shift, g, weight, normal_gradient,
    gate_gradient, sums, partial, width, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Compute dL/dnorm(t), dL/dg and the gradients of parameters from dL/dnorm(y), where y is the output of FHEAT.

    Each row of `partial` begins with the gradients of W, bias, scale and shift. A program adds up TILES tiles, and
    their rows once, at the end. A matrix of up to 64 channels is read once; a larger one would fill the registers.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    square = valid[:, None] & valid[None, :]
    onto = channel[:, None] * C + channel[None, :]
    if CP <= 64:
        matrix = read_matrix(weight, onto, square, DOT)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    y_factor = read_row(y_scale, channel, C)
    mean, deviation, y_mean, y_deviation, first, second = read_norms(
        moments, y_moments, y_sums, sample, voxels, span, eps, C, SPLITS
    )
    weight_gradient = tl.zeros([CP, CP], tl.float32)
    bias_gradient = tl.zeros([BLOCK, CP], tl.float32)
    scale_gradient = tl.zeros([BLOCK, CP], tl.float32)
    shift_gradient = tl.zeros([BLOCK, CP], tl.float32)
    for tile in range(TILES):
        _, _, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        there = tl.load(y + place, mask=keep, other=0.0)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0)
        here = tl.load(t + place, mask=keep, other=0.0)
        gate = tl.load(g + place, mask=keep, other=0.0)
        after = through_norm(gradient, there, keep, y_mean, y_deviation, y_factor, first, second, voxels * 1.0 * C)
        arriving = rounded(after, DOT)
        normal = tl.where(keep, (here - mean) * deviation, 0.0)
        scaled = normal * factor + offset
        soft = sigmoid(gate)
        swish = gate * soft
        weight_gradient += product(tl.trans(arriving), swish * scaled, DOT)
        if CP > 64:
            matrix = read_matrix(weight, onto, square, DOT)
        inner = product(arriving, matrix, DOT)
        value = inner * swish
        bias_gradient += after
        scale_gradient += value * normal
        shift_gradient += value
        tl.store(normal_gradient + place, value, mask=keep)
        tl.store(gate_gradient + place, inner * scaled * (soft + swish * (1.0 - soft)), mask=keep)
    program = sample * SPLITS + part
    row = partial + program * width
    tl.store(row + onto, weight_gradient, mask=square)
    after, by_normal, value, shifted = sum_four(
        bias_gradient, scale_gradient, shift_gradient, shift_gradient * factor, 0
    )
    store_vectors(row + C * C, after, by_normal, value, shifted, channel, C, 3)
    shifted, stretched = sum_two(shifted, by_normal * tl.load(scale + channel, mask=valid, other=0.0), 0)
    store_pair(sums, program, shifted, stretched)


@triton.jit
def project_backward(
    value_gradient, t, moments, sums, scale, gate_gradient, x, weight, out, partial, width, at, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
    TILES: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Compute dL/dx from dL/dv and dL/dg, and store the gradients of W and bias in rows of `partial` from `at` on.

    With NORM, `value_gradient` is dL/dnorm(t), where t is v, and dL/dv is computed here; without, it is dL/dv, and t,
    its moments, sums and scale are not read. A program adds up TILES tiles, and their rows once, at the end. Matrices
    of up to 64 channels are read once.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    square = valid[:, None] & valid[None, :]
    onto = channel[:, None] * C + channel[None, :]
    if CP <= 64:
        value_weight = read_matrix(weight, onto, square, DOT)
        gate_weight = read_matrix(weight + C * C, onto, square, DOT)
    if NORM:
        factor = read_row(scale, channel, C)
        mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
        first, second = read_sums(sums, sample, SPLITS)
    value_weight_gradient = tl.zeros([CP, CP], tl.float32)
    gate_weight_gradient = tl.zeros([CP, CP], tl.float32)
    value_bias_gradient = tl.zeros([BLOCK, CP], tl.float32)
    gate_bias_gradient = tl.zeros([BLOCK, CP], tl.float32)
    for tile in range(TILES):
        _, _, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        dv = tl.load(value_gradient + place, mask=keep, other=0.0)
        dg = tl.load(gate_gradient + place, mask=keep, other=0.0)
        local = rounded(tl.load(x + place, mask=keep, other=0.0), DOT)
        if NORM:
            here = tl.load(t + place, mask=keep, other=0.0)
            dv = through_norm(dv, here, keep, mean, deviation, factor, first, second, voxels * 1.0 * C)
        value_bias_gradient += dv
        gate_bias_gradient += dg
        dv, dg = rounded(dv, DOT), rounded(dg, DOT)
        value_weight_gradient += product(tl.trans(dv), local, DOT)
        gate_weight_gradient += product(tl.trans(dg), local, DOT)
        if CP > 64:
            value_weight = read_matrix(weight, onto, square, DOT)
        result = product(dv, value_weight, DOT)
        if CP > 64:
            gate_weight = read_matrix(weight + C * C, onto, square, DOT)
        result += product(dg, gate_weight, DOT)
        tl.store(out + place, result, mask=keep)
    row = partial + (sample * SPLITS + part) * width + at
    tl.store(row + onto, value_weight_gradient, mask=square)
    tl.store(row + C * C + onto, gate_weight_gradient, mask=square)
    row += 2 * C * C
    dv, dg = sum_two(value_bias_gradient, gate_bias_gradient, 0)
    two = tl.arange(0, 2)[:, None]
    tl.store(row + two * C + channel[None, :], tl.where(two == 0, dv[None, :], dg[None, :]), mask=valid[None, :])
