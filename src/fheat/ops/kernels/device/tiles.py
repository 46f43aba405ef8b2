"""What the Triton kernels share: tiles of voxels by channels, moments of a sample, norm, products, rational function.

Tensors are (samples, voxels, C), channels last. A program owns one sample's run of `span` voxels and walks it in tiles
of BLOCK voxels by CP channels, CP the next power of two from C. Sums over a sample are kept per program and added up
by whoever needs them, always in the same order, so results repeat bit by bit.
"""

import triton
import triton.language as tl


@triton.jit
def tile_at(start, sample, voxels, channel, C: tl.constexpr, BLOCK: tl.constexpr):
    """Return the voxels of a tile, which of them and of its elements exist, and where these lie."""
    voxel = start + tl.arange(0, BLOCK)
    rows = voxel < voxels
    place = (sample * voxels + voxel)[:, None] * C + channel[None, :]
    return voxel, rows, rows[:, None] & (channel < C)[None, :], place


@triton.jit
def read_row(values, channel, C: tl.constexpr):
    """Return one number per channel, (1, channels), zeros in the padding."""
    return tl.load(values + channel, mask=channel < C, other=0.0)[None, :]


@triton.jit
def store_pair(pairs, program, first, second):
    """Store the two numbers of a program: moments or sums."""
    tl.store(pairs + program * 2, first)
    tl.store(pairs + program * 2 + 1, second)


@triton.jit
def product(a, b, DOT: tl.constexpr):
    """Matrix product with float32 sums; operands are rounded to bf16 or fp16 first where DOT says so."""
    if DOT == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif DOT == "fp16":
        return tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_moments(count, mean, squares, values, rows, keep, C: tl.constexpr):
    """Merge a tile into (count, mean, sum of squared deviations), by Chan's rule."""
    added = tl.sum(rows.to(tl.float32)) * C
    tile_mean = tl.sum(tl.where(keep, values, 0.0)) / tl.maximum(added, 1.0)
    deviation = tl.where(keep, values - tile_mean, 0.0)
    total = count + added
    share = added / tl.maximum(total, 1.0)
    step = tile_mean - mean
    return total, mean + step * share, squares + tl.sum(deviation * deviation) + step * step * count * share


@triton.jit
def read_moments(moments, sample, voxels, span, eps, C: tl.constexpr, SPLITS: tl.constexpr):
    """Return mean and 1 / deviation of a sample from the moments its programs stored, (samples, SPLITS, 2)."""
    part = tl.arange(0, SPLITS)
    count = tl.minimum(tl.maximum(voxels - part * span, 0), span).to(tl.float32) * C
    means = tl.load(moments + (sample * SPLITS + part) * 2)
    squares = tl.load(moments + (sample * SPLITS + part) * 2 + 1)
    total = voxels * 1.0 * C  # not `.to`: a whole number that is 1 arrives as a constant
    mean = tl.sum(count * means) / total
    away = means - mean
    variance = tl.sum(squares + count * away * away) / total
    return mean, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def read_sums(sums, sample, SPLITS: tl.constexpr):
    """Return the two sums of a sample from what its programs stored, (samples, SPLITS, 2)."""
    part = tl.arange(0, SPLITS)
    first = tl.load(sums + (sample * SPLITS + part) * 2)
    second = tl.load(sums + (sample * SPLITS + part) * 2 + 1)
    return tl.sum(first), tl.sum(second)


@triton.jit
def norm_backward(slope, normal, scale, deviation, first, second, count):
    """Gradient before a norm from the one behind it: (g s - (sum g s + n sum g s n) / count) / deviation.

    `normal` is the normalised value n, `deviation` the factor 1 / sqrt(variance + eps) it was made with.
    """
    return (slope * scale - (first + normal * second) / count) * deviation


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def rational_terms(h, numerator, denominator, group, valid):
    """Return above, below, their derivatives in h: the parts of F = above / (1 + |below|)."""
    a0 = tl.load(numerator)
    a1 = tl.load(numerator + 1)
    a2 = tl.load(numerator + 2)
    a3 = tl.load(numerator + 3)
    a4 = tl.load(numerator + 4)
    a5 = tl.load(numerator + 5)
    b1 = tl.load(denominator + group * 4, mask=valid, other=0.0)[None, :]
    b2 = tl.load(denominator + group * 4 + 1, mask=valid, other=0.0)[None, :]
    b3 = tl.load(denominator + group * 4 + 2, mask=valid, other=0.0)[None, :]
    b4 = tl.load(denominator + group * 4 + 3, mask=valid, other=0.0)[None, :]
    above = ((((a5 * h + a4) * h + a3) * h + a2) * h + a1) * h + a0
    below = (((b4 * h + b3) * h + b2) * h + b1) * h
    above_slope = (((5 * a5 * h + 4 * a4) * h + 3 * a3) * h + 2 * a2) * h + a1
    below_slope = ((4 * b4 * h + 3 * b3) * h + 2 * b2) * h + b1
    return above, below, above_slope, below_slope
