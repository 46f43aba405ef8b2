"""Kernels of the 3x3x3 convolution with few channels: padding 1, stride 1 or 2, no bias.

Tensors are (samples, voxels, channels), channels last; `x` has the grid X, Y, Z, and the output of stride S has the
grid ceil(X / S), ceil(Y / S), ceil(Z / S). Weights are (N, C, 27), as the module stores them. The convolution is a
matrix product: a tile of BLOCK voxels by CHUNK columns, gathered from memory when it is needed, times a tile of the
weights. A column is one tap (one of the 27 neighbours) and one channel, numbered tap * C + channel, so that a row of a
tile reads contiguous memory.

Bits tell which elements lie outside the grid. A voxel has one bit for each tap of each axis that lies within the grid,
and a column has the three bits of its own tap: an element exists where the voxel has all bits of the column.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import product

CHUNK = tl.constexpr(32)
"""Number of columns of a tile."""
MISSING_BIT = tl.constexpr(512)
"""A bit that no voxel has; columns beyond the last one need it, so they are read as zeros."""


@triton.jit
def split(voxel, Y, Z):
    """Return the three coordinates of voxels from their indices in a grid."""
    return voxel // (Y * Z), voxel // Z % Y, voxel % Z


@triton.jit
def gather(x, place, bits, offset, need):
    """Return a tile (voxels, columns) with zeros outside the grid."""
    inside = (bits[:, None] & need[None, :]) == need[None, :]
    return tl.load(x + place[:, None] + offset[None, :], mask=inside, other=0.0)


@triton.jit
def three_bits(i, j, k):
    """Return the bits that columns need; i, j, k are the numbers of their taps along each axis."""
    one = tl.full(i.shape, 1, tl.int32)
    return (one << i) | (one << (j + 3)) | (one << (k + 6))


@triton.jit
def taps_within(at, length):
    """Return which of the taps at - 1, at, at + 1 lie within an axis, as bits 0, 1, 2."""
    return (at > 0).to(tl.int32) + 2 + 4 * (at + 1 < length).to(tl.int32)


@triton.jit
def around(voxel, rows, sample, X, Y, Z, C: tl.constexpr, S: tl.constexpr):
    """Return, for each output voxel, the offset in `x` of the voxel under the middle tap, and its bits."""
    i, j, k = split(voxel, (Y + S - 1) // S, (Z + S - 1) // S)
    i, j, k = i * S, j * S, k * S
    bits = taps_within(i, X) + taps_within(j, Y) * 8 + taps_within(k, Z) * 64
    return (((sample * X + i) * Y + j) * Z + k) * C, tl.where(rows, bits, 0)


@triton.jit
def columns(start, Y, Z, C: tl.constexpr):
    """Return tap, channel, validity, offset from the middle tap and needed bits of CHUNK columns from `start` on."""
    column = start + tl.arange(0, CHUNK)
    tap, channel = column // C, column % C
    i, j, k = tap // 9, tap // 3 % 3, tap % 3
    offset = (((i - 1) * Y + j - 1) * Z + k - 1) * C + channel
    valid = column < 27 * C
    return tap, channel, valid, offset, tl.where(valid, three_bits(i, j, k), MISSING_BIT)


@triton.jit
def store_tile(out, place, value, rows, N: tl.constexpr, NP: tl.constexpr):
    """Store the first N channels of a tile (voxels, NP)."""
    channel = tl.arange(0, NP)
    tl.store(out + place[:, None] * N + channel[None, :], value, mask=rows[:, None] & (channel < N)[None, :])


@triton.jit
def convolve(
    x, weight, out, X, Y, Z,
    C: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Compute out = convolution of x, C to N channels; with FLIP its transpose of stride 1, `weight` (C, N, 27)."""
    tile, sample = tl.program_id(0), tl.program_id(1)
    voxels = ((X + S - 1) // S) * ((Y + S - 1) // S) * ((Z + S - 1) // S)
    voxel = tile * BLOCK + tl.arange(0, BLOCK)
    rows = voxel < voxels
    place, bits = around(voxel, rows, sample, X, Y, Z, C, S)
    n = tl.arange(0, NP)
    total = tl.zeros([BLOCK, NP], tl.float32)
    for start in range(0, 27 * C, CHUNK):
        tap, channel, valid, offset, need = columns(start, Y, Z, C)
        value = gather(x, place, bits, offset, need)
        if FLIP:
            where = (channel * (27 * N) + 26 - tap)[:, None] + (n * 27)[None, :]
        else:
            where = (channel * 27 + tap)[:, None] + (n * (27 * C))[None, :]
        factor = tl.load(weight + where, mask=valid[:, None] & (n < N)[None, :], other=0.0)
        total += product(value, factor, DOT)
    store_tile(out, sample * voxels + voxel, total, rows, N, NP)


@triton.jit
def ends_within(at, odd, length):
    """Return as bits 0 and 1 whether outputs at + odd and at lie within an axis; bit 1 is needed on odd axes only."""
    return (at + odd < length).to(tl.int32) + 2


@triton.jit
def convolve_back(
    output_gradient, weight, out, X, Y, Z,
    C: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute out, the input gradient (N channels) of a convolution of stride 2, from its output gradient (C channels).

    `weight` is (C, N, 27). A program owns voxels 2 a + p, where p is one of the eight parities. Along each axis only
    tap 1 connects an even voxel with output a, and taps 0 and 2 connect an odd voxel with outputs a + 1 and a. Columns
    are those taps only: t * C + channel, where t has one bit for each odd axis.
    """
    program, sample = tl.program_id(0), tl.program_id(1)
    pi, pj, pk = program // 4 % 2, program // 2 % 2, program % 2
    ox, oy, oz = (X + 1) // 2, (Y + 1) // 2, (Z + 1) // 2
    i, j, k = split(program // 8 * BLOCK + tl.arange(0, BLOCK), oy, oz)
    rows = (2 * i + pi < X) & (2 * j + pj < Y) & (2 * k + pk < Z)
    place = (((sample * ox + i) * oy + j) * oz + k) * C
    bits = ends_within(i, pi, ox) + ends_within(j, pj, oy) * 8 + ends_within(k, pk, oz) * 64
    bits = tl.where(rows, bits, 0)
    width = C << (pi + pj + pk)
    n = tl.arange(0, NP)
    total = tl.zeros([BLOCK, NP], tl.float32)
    for start in range(0, width, CHUNK):
        column = start + tl.arange(0, CHUNK)
        valid = column < width
        t, channel = column // C, column % C
        ti, tj, tk = (t >> (pj + pk)) & pi, (t >> pk) & pj, t & pk
        offset = (((pi - ti) * oy + pj - tj) * oz + pk - tk) * C + channel
        value = gather(output_gradient, place, bits, offset, tl.where(valid, three_bits(ti, tj, tk), MISSING_BIT))
        tap = (1 - pi + 2 * ti) * 9 + (1 - pj + 2 * tj) * 3 + 1 - pk + 2 * tk
        where = (channel * (27 * N) + tap)[:, None] + (n * 27)[None, :]
        factor = tl.load(weight + where, mask=valid[:, None] & (n < N)[None, :], other=0.0)
        total += product(value, factor, DOT)
    store_tile(out, ((sample * X + 2 * i + pi) * Y + 2 * j + pj) * Z + 2 * k + pk, total, rows, N, NP)


@triton.jit
def convolve_weights(
    output_gradient, x, partial, X, Y, Z, span,
    C: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Compute the weight gradient (N, C, 27) from `span` successive output voxels, CHUNK columns per program."""
    chunk, sample, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    voxels = ((X + S - 1) // S) * ((Y + S - 1) // S) * ((Z + S - 1) // S)
    tap, channel, valid, offset, need = columns(chunk * CHUNK, Y, Z, C)
    n = tl.arange(0, NP)
    total = tl.zeros([NP, CHUNK], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        rows = voxel < voxels
        place, bits = around(voxel, rows, sample, X, Y, Z, C, S)
        value = gather(x, place, bits, offset, need)
        here = (sample * voxels + voxel)[:, None] * N + n[None, :]
        gradient = tl.load(output_gradient + here, mask=rows[:, None] & (n < N)[None, :], other=0.0)
        total += product(tl.trans(gradient), value, DOT)
    row = partial + (sample * tl.num_programs(2) + part) * (27 * C * N)
    where = (n * (27 * C))[:, None] + (channel * 27 + tap)[None, :]
    tl.store(row + where, total, mask=(n < N)[:, None] & valid[None, :])
