"""Kernels of the mixer of a convolution block: norm of each channel, product, GELU, product, and all their gradients.

With C channels, H hidden ones and N at the end, padded to CP, HP and NP. A program's row of `partial` holds its share
of the gradients of W1 (H, C), W2 (N, H), b1, b2, scale and shift, in this order.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.channel_norm import read_channel_moments
from fheat.ops.kernels.device.tiles import gelu_tail, gelu_terms, product, read_row, rounded, tile_at


@triton.jit
def read_matrix(values, row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, across: tl.constexpr):
    """Return values[row, column] of a matrix (HEIGHT, WIDTH) with zeros in the padding, transposed with `across`."""
    if across:
        keep = (column < WIDTH)[:, None] & (row < HEIGHT)[None, :]
        return tl.load(values + row[None, :] * WIDTH + column[:, None], mask=keep, other=0.0)
    else:
        keep = (row < HEIGHT)[:, None] & (column < WIDTH)[None, :]
        return tl.load(values + row[:, None] * WIDTH + column[None, :], mask=keep, other=0.0)


@triton.jit
def widen_forward(
    y, moments, scale, shift, weight1, bias1, weight2, bias2, residual, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute out = residual + W2 GELU(W1 norm(y) + b1) + b2."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel, hidden, after = tl.arange(0, CP), tl.arange(0, HP), tl.arange(0, NP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    add1 = read_row(bias1, hidden, H)
    add2 = read_row(bias2, after, N)
    first = read_matrix(weight1, hidden, channel, H, C, True)
    second = read_matrix(weight2, after, hidden, N, H, True)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        _, _, keep_out, place_out = tile_at(start, sample, voxels, after, N, BLOCK)
        normal = (tl.load(y + place, mask=keep, other=0.0) - mean) * deviation
        h = product(tl.where(keep, normal * factor + offset, 0.0), first, DOT) + add1
        share, _density = gelu_terms(h)
        value = product(h * share, second, DOT) + add2
        value += tl.load(residual + place_out, mask=keep_out, other=0.0).to(tl.float32)
        tl.store(out + place_out, value, mask=keep_out)


@triton.jit
def widen_backward(
    output_gradient, y, moments, scale, shift, weight1, bias1, weight2, out, partial, width, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dnorm(y) and the gradients of all parameters; the hidden layer is computed again."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel, hidden, after = tl.arange(0, CP), tl.arange(0, HP), tl.arange(0, NP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    add1 = read_row(bias1, hidden, H)
    first = read_matrix(weight1, hidden, channel, H, C, False)
    second = read_matrix(weight2, after, hidden, N, H, False)
    weight1_gradient, weight2_gradient = tl.zeros([HP, CP], tl.float32), tl.zeros([NP, HP], tl.float32)
    bias1_gradient, bias2_gradient = tl.zeros([HP], tl.float32), tl.zeros([NP], tl.float32)
    scale_gradient, shift_gradient = tl.zeros([CP], tl.float32), tl.zeros([CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        _, _, keep_out, place_out = tile_at(start, sample, voxels, after, N, BLOCK)
        normal = (tl.load(y + place, mask=keep, other=0.0) - mean) * deviation
        scaled = tl.where(keep, normal * factor + offset, 0.0)
        h = product(scaled, tl.trans(first), DOT) + add1
        share, density = gelu_terms(h)
        slope = share + h * density
        gradient = tl.load(output_gradient + place_out, mask=keep_out, other=0.0)
        bias2_gradient += tl.sum(gradient, axis=0)
        weight2_gradient += product(tl.trans(gradient), h * share, DOT)
        before = product(gradient, second, DOT) * slope
        bias1_gradient += tl.sum(before, axis=0)
        weight1_gradient += product(tl.trans(before), scaled, DOT)
        value = product(before, first, DOT)
        scale_gradient += tl.sum(value * normal, axis=0)
        shift_gradient += tl.sum(value, axis=0)
        tl.store(out + place, value, mask=keep)
    row = partial + (sample * SPLITS + part) * width
    tall = (hidden < H)[:, None] & (channel < C)[None, :]
    flat = (after < N)[:, None] & (hidden < H)[None, :]
    tl.store(row + hidden[:, None] * C + channel[None, :], weight1_gradient, mask=tall)
    tl.store(row + H * C + after[:, None] * H + hidden[None, :], weight2_gradient, mask=flat)
    row += H * C + N * H
    tl.store(row + hidden, bias1_gradient, mask=hidden < H)
    tl.store(row + H + after, bias2_gradient, mask=after < N)
    tl.store(row + H + N + channel, scale_gradient, mask=channel < C)
    tl.store(row + H + N + C + channel, shift_gradient, mask=channel < C)


@triton.jit
def widen_folded(
    y, moments, scale, shift, weight1, bias1, weight2, bias2, residual, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute what `widen_forward` does with fewer instructions for each voxel; a program has TILES tiles.

    With n = (y - mean) / deviation the scale s and the shift t of the norm are folded into the first product:
    W1 (s n + t) + b1 = (W1 s) n + (b1 + W1 t). GELU has no branches, see `gelu_tail`.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel, hidden, after = tl.arange(0, CP), tl.arange(0, HP), tl.arange(0, NP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    first = read_matrix(weight1, hidden, channel, H, C, False)
    add1 = read_row(bias1, hidden, H) + tl.sum(first * read_row(shift, channel, C), axis=1)[None, :]
    into1 = rounded(tl.trans(first * read_row(scale, channel, C)), DOT)
    into2 = rounded(read_matrix(weight2, after, hidden, N, H, True), DOT)
    add2 = read_row(bias2, after, N)
    for tile in range(TILES):
        start = part * span + tile * BLOCK
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        _, _, keep_out, place_out = tile_at(start, sample, voxels, after, N, BLOCK)
        here = tl.load(y + place, mask=keep, other=0.0)
        beside = tl.load(residual + place_out, mask=keep_out, other=0.0).to(tl.float32)
        h = product((here - mean) * deviation, into1, DOT) + add1
        active = tl.maximum(h, 0.0) - tl.abs(h) * gelu_tail(h)
        tl.store(out + place_out, product(active, into2, DOT) + add2 + beside, mask=keep_out)


@triton.jit
def widen_gradients(
    output_gradient, y, moments, scale, shift, weight1, bias1, weight2, out, partial, width, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute what `widen_backward` does, with no sum over the voxels of a tile other than by products.

    With the gradient g of the hidden layer before GELU, n and the folds of `widen_folded`, a program adds up
    A = sum g n^T, (H, C), and b = sum g, (H), the latter as a product with ones, and finds at its end

        dW1 = A s + b t^T,   ds = sum over h of W1 A,   dt = W1^T b.

    dW2 is kept transposed, (H, N). Voxels that do not exist have g = 0.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel, hidden, after = tl.arange(0, CP), tl.arange(0, HP), tl.arange(0, NP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    first = read_matrix(weight1, hidden, channel, H, C, False)
    add1 = read_row(bias1, hidden, H) + tl.sum(first * offset, axis=1)[None, :]
    into1 = rounded(tl.trans(first * factor), DOT)
    onto1 = rounded(first, DOT)
    onto2 = rounded(read_matrix(weight2, after, hidden, N, H, False), DOT)
    ones = rounded(tl.full([16, BLOCK], 1.0, tl.float32), DOT)
    by_normal, weight2_gradient = tl.zeros([HP, CP], tl.float32), tl.zeros([HP, NP], tl.float32)
    bias1_gradient, bias2_gradient = tl.zeros([16, HP], tl.float32), tl.zeros([16, NP], tl.float32)
    for tile in range(TILES):
        start = part * span + tile * BLOCK
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        _, _, keep_out, place_out = tile_at(start, sample, voxels, after, N, BLOCK)
        here = tl.load(y + place, mask=keep, other=0.0)
        arriving = rounded(tl.load(output_gradient + place_out, mask=keep_out, other=0.0), DOT)
        normal = rounded((here - mean) * deviation, DOT)
        h = product(normal, into1, DOT) + add1
        tail = gelu_tail(h)
        active = tl.maximum(h, 0.0) - tl.abs(h) * tail
        density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * h * h)
        slope = tl.where(h > 0, 1.0 - tail, tail) + h * density
        weight2_gradient += product(tl.trans(rounded(active, DOT)), arriving, DOT)
        leaving = rounded(product(arriving, onto2, DOT) * slope, DOT)
        by_normal += product(tl.trans(leaving), normal, DOT)
        tl.store(out + place, product(leaving, onto1, DOT), mask=keep)
        bias1_gradient += product(ones, leaving, DOT)
        bias2_gradient += product(ones, arriving, DOT)
    row = partial + (sample * SPLITS + part) * width
    bias1_sum = tl.sum(bias1_gradient, axis=0) / 16  # of 16 equal rows
    bias2_sum = tl.sum(bias2_gradient, axis=0) / 16
    first = rounded(read_matrix(weight1, hidden, channel, H, C, False), DOT).to(tl.float32)
    tall = (hidden < H)[:, None] & (channel < C)[None, :]
    wide = (hidden < H)[:, None] & (after < N)[None, :]
    weight1_gradient = by_normal * factor + bias1_sum[:, None] * offset
    tl.store(row + hidden[:, None] * C + channel[None, :], weight1_gradient, mask=tall)
    tl.store(row + H * C + after[None, :] * H + hidden[:, None], weight2_gradient, mask=wide)
    row += H * C + N * H
    tl.store(row + hidden, bias1_sum, mask=hidden < H)
    tl.store(row + H + after, bias2_sum, mask=after < N)
    tl.store(row + H + N + channel, tl.sum(first * by_normal, axis=0), mask=channel < C)
    tl.store(row + H + N + C + channel, tl.sum(first * bias1_sum[:, None], axis=0), mask=channel < C)
