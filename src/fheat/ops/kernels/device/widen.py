"""Kernels of the mixer of a convolution block: norm of each channel, product, GELU, product, and all their gradients.

With C channels, H hidden ones and N at the end, padded to CP, HP and NP. A program's row of `partial` holds its share
of the gradients of W1 (H, C), W2 (N, H), b1, b2, scale and shift, in this order.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.channel_norm import read_channel_moments
from fheat.ops.kernels.device.tiles import gelu_tail, product, read_row, rounded, tile_at


@triton.jit
def read_padded_matrix(values, row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, across: tl.constexpr):
    """Return values[row, column] of a matrix (HEIGHT, WIDTH) with zeros in the padding, transposed with `across`."""
    if across:
        keep = (column < WIDTH)[:, None] & (row < HEIGHT)[None, :]
        return tl.load(values + row[None, :] * WIDTH + column[:, None], mask=keep, other=0.0)
    else:
        keep = (row < HEIGHT)[:, None] & (column < WIDTH)[None, :]
        return tl.load(values + row[:, None] * WIDTH + column[None, :], mask=keep, other=0.0)


@triton.jit
def output_tile_at(
    start, sample, voxels, after, N: tl.constexpr, BLOCK: tl.constexpr,
    FX: tl.constexpr, FY: tl.constexpr, FZ: tl.constexpr,
):  # fmt: skip
    """Return which elements of a tile behind the second product exist, and their offsets.

    Where y has a grid, (FX, FY, FZ), the tile belongs to one of (FX + 1, FY + 1, FZ + 1) and lies one voxel further
    along each axis.
    """
    voxel, _, keep, place = tile_at(start, sample, voxels, after, N, BLOCK)
    if FX > 0:
        i, j, k = voxel // (FY * FZ), voxel // FZ % FY, voxel % FZ
        row = ((sample * (FX + 1) + i + 1) * (FY + 1) + j + 1) * (FZ + 1) + k + 1
        place = row[:, None] * N + after[None, :]
    return keep, place


@triton.jit
def read_spread(
    coarse, start, sample, keep, after, N: tl.constexpr, BLOCK: tl.constexpr,
    FX: tl.constexpr, FY: tl.constexpr, FZ: tl.constexpr,
):  # fmt: skip
    """Return the coarse tensor, of (FX + 1) / 2 voxels along the first axis, in every second voxel of (FX, FY, FZ)."""
    voxel = start + tl.arange(0, BLOCK)
    i, j, k = voxel // (FY * FZ), voxel // FZ % FY, voxel % FZ
    row = ((sample * ((FX + 1) // 2) + i // 2) * ((FY + 1) // 2) + j // 2) * ((FZ + 1) // 2) + k // 2
    even = (i | j | k) % 2 == 0
    return tl.load(coarse + row[:, None] * N + after[None, :], mask=keep & even[:, None], other=0.0).to(tl.float32)


@triton.jit
def widen_forward(
    y, moments, scale, shift, weight1, bias1, weight2, bias2, residual, skip, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr, TILES: tl.constexpr,
    FX: tl.constexpr, FY: tl.constexpr, FZ: tl.constexpr,
):  # fmt: skip
    """Compute out = residual + W2 GELU(W1 norm(y) + b1) + b2; a program has TILES tiles.

    Where y has a grid, (FX, FY, FZ), the residual is spread over it, and the sum is added to `skip` at the places of
    `output_tile_at`.

    With n = (y - mean) / deviation the scale s and the shift t of the norm are folded into the first product:
    W1 (s n + t) + b1 = (W1 s) n + (b1 + W1 t). GELU has no branches, see `gelu_tail`.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel, hidden, after = tl.arange(0, CP), tl.arange(0, HP), tl.arange(0, NP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    first = read_padded_matrix(weight1, hidden, channel, H, C, False)
    add1 = read_row(bias1, hidden, H) + tl.sum(first * read_row(shift, channel, C), axis=1)[None, :]
    into1 = rounded(tl.trans(first * read_row(scale, channel, C)), DOT)
    into2 = rounded(read_padded_matrix(weight2, after, hidden, N, H, True), DOT)
    add2 = read_row(bias2, after, N)
    for tile in range(TILES):
        start = part * span + tile * BLOCK
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        keep_out, place_out = output_tile_at(start, sample, voxels, after, N, BLOCK, FX, FY, FZ)
        here = tl.load(y + place, mask=keep, other=0.0).to(tl.float32)
        if FX > 0:
            beside = tl.load(skip + place_out, mask=keep_out, other=0.0).to(tl.float32)
            beside += read_spread(residual, start, sample, keep_out, after, N, BLOCK, FX, FY, FZ)
        else:
            beside = tl.load(residual + place_out, mask=keep_out, other=0.0).to(tl.float32)
        h = product((here - mean) * deviation, into1, DOT) + add1
        active = tl.maximum(h, 0.0) - tl.abs(h) * gelu_tail(h)
        tl.store(out + place_out, product(active, into2, DOT) + add2 + beside, mask=keep_out)


@triton.jit
def gelu_and_slope(h):
    """Return GELU(h) = h Phi(h) and its derivative Phi(h) + h phi(h)."""
    tail = gelu_tail(h)
    density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * h * h)
    return tl.maximum(h, 0.0) - tl.abs(h) * tail, tl.where(h > 0, 1.0 - tail, tail) + h * density


@triton.jit
def with_ones(values, column, at: tl.constexpr, change: tl.constexpr):
    """Return a tile with ones in the column `at`, or as it is."""
    if change:
        return tl.where(column[None, :] == at, 1.0, values)
    else:
        return values


@triton.jit
def store_gradients(
    row, by_normal, weight2, bias1, bias2, first, factor, offset, hidden, channel, after,
    H: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Store a row of `partial` from A, dW2^T, b and db2 of `widen_backward`, W1 and the norm's scale and shift."""
    tall = (hidden < H)[:, None] & (channel < C)[None, :]
    wide = (hidden < H)[:, None] & (after < N)[None, :]
    weight1 = by_normal * factor + bias1[:, None] * offset
    tl.store(row + hidden[:, None] * C + channel[None, :], weight1, mask=tall)
    tl.store(row + H * C + after[None, :] * H + hidden[:, None], weight2, mask=wide)
    row += H * C + N * H
    tl.store(row + hidden, bias1, mask=hidden < H)
    tl.store(row + H + after, bias2, mask=after < N)
    tl.store(row + H + N + channel, tl.sum(first * by_normal, axis=0), mask=channel < C)
    tl.store(row + H + N + C + channel, tl.sum(first * bias1[:, None], axis=0), mask=channel < C)


@triton.jit
def widen_backward(
    output_gradient, y, moments, scale, shift, weight1, bias1, weight2, out, partial, width, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, DOT: tl.constexpr, TILES: tl.constexpr, ONES_IN_PADDING: tl.constexpr,
    FX: tl.constexpr, FY: tl.constexpr, FZ: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dnorm(y) and the gradients of all parameters; the hidden layer is computed again.

    No sum over the voxels of a tile is other than by products. With the gradient g of the hidden layer before GELU, n
    and the folds of `widen_forward`, a program adds up A = sum g n^T, (H, C), and b = sum g, (H), the latter as a
    product with ones, and finds at its end

        dW1 = A s + b t^T,   ds = sum over h of W1 A,   dt = W1^T b.

    dW2 is kept transposed, (H, N). Voxels that do not exist have g = 0. With ONES_IN_PADDING, which needs C < CP and
    H < HP, the ones are a column of n behind its channels, and one of the hidden layer: no product is only for them.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel, hidden, after = tl.arange(0, CP), tl.arange(0, HP), tl.arange(0, NP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    first = read_padded_matrix(weight1, hidden, channel, H, C, False)
    add1 = read_row(bias1, hidden, H) + tl.sum(first * offset, axis=1)[None, :]
    into1, onto1 = rounded(tl.trans(first * factor), DOT), rounded(first, DOT)
    onto2 = rounded(read_padded_matrix(weight2, after, hidden, N, H, False), DOT)
    by_normal, weight2_gradient = tl.zeros([HP, CP], tl.float32), tl.zeros([HP, NP], tl.float32)
    if not ONES_IN_PADDING:
        ones = rounded(tl.full([16, BLOCK], 1.0, tl.float32), DOT)
        bias1_gradient, bias2_gradient = tl.zeros([16, HP], tl.float32), tl.zeros([16, NP], tl.float32)
    for tile in range(TILES):
        start = part * span + tile * BLOCK
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        keep_out, place_out = output_tile_at(start, sample, voxels, after, N, BLOCK, FX, FY, FZ)
        here = tl.load(y + place, mask=keep, other=0.0).to(tl.float32)
        arriving = rounded(tl.load(output_gradient + place_out, mask=keep_out, other=0.0), DOT)
        normal = rounded(with_ones((here - mean) * deviation, channel, C, ONES_IN_PADDING), DOT)
        h = product(normal, into1, DOT) + add1
        active, slope = gelu_and_slope(h)
        active = rounded(with_ones(active, hidden, H, ONES_IN_PADDING), DOT)
        weight2_gradient += product(tl.trans(active), arriving, DOT)
        leaving = rounded(product(arriving, onto2, DOT) * slope, DOT)
        by_normal += product(tl.trans(leaving), normal, DOT)
        tl.store(out + place, product(leaving, onto1, DOT), mask=keep)
        if not ONES_IN_PADDING:
            bias1_gradient += product(ones, leaving, DOT)
            bias2_gradient += product(ones, arriving, DOT)
    row = partial + (sample * SPLITS + part) * width
    if ONES_IN_PADDING:
        bias1_sum = tl.sum(tl.where(channel[None, :] == C, by_normal, 0.0), axis=1)
        bias2_sum = tl.sum(tl.where(hidden[:, None] == H, weight2_gradient, 0.0), axis=0)
    else:
        bias1_sum = tl.sum(bias1_gradient, axis=0) / 16  # of 16 equal rows
        bias2_sum = tl.sum(bias2_gradient, axis=0) / 16
    first = rounded(read_padded_matrix(weight1, hidden, channel, H, C, False), DOT).to(tl.float32)
    store_gradients(
        row, by_normal, weight2_gradient, bias1_sum, bias2_sum, first, factor, offset, hidden, channel, after, H, C, N
    )
