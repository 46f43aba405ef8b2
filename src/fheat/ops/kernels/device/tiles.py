"""Parts that the kernels share: tiles of voxels by channels, moments of a sample, norm, products, activations.

Tensors are (samples, voxels, C), channels last. A program owns `span` successive voxels of one sample and works through
them in tiles of BLOCK voxels by CP channels, where CP is the next power of two from C. Each program stores its share of
a sum over a sample; the kernel that needs the sum adds the shares, always in the same order, so results repeat bit by
bit.
"""

import triton
import triton.language as tl


@triton.jit
def tile_at(start, sample, voxels, channel, C: tl.constexpr, BLOCK: tl.constexpr):
    """Return the voxels of a tile, which of them exist, which of its elements exist, and the elements' offsets."""
    voxel = start + tl.arange(0, BLOCK)
    rows = voxel < voxels
    place = (sample * voxels + voxel)[:, None] * C + channel[None, :]
    return voxel, rows, rows[:, None] & (channel < C)[None, :], place


@triton.jit
def read_row(values, channel, C: tl.constexpr):
    """Return one number per channel, (1, channels), with zeros in the padding."""
    return tl.load(values + channel, mask=channel < C, other=0.0)[None, :]


@triton.jit
def store_pair(pairs, program, first, second):
    """Store the two numbers of a program, which are moments or sums."""
    tl.store(pairs + program * 2, first)
    tl.store(pairs + program * 2 + 1, second)


@triton.jit
def added_four(a0, a1, a2, a3, b0, b1, b2, b3):
    """Return four sums of two, as `tl.reduce` wants them."""
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def sum_four(first, second, third, fourth, AXIS: tl.constexpr):
    """Return four sums along an axis; warps meet once for all of them."""
    return tl.reduce((first, second, third, fourth), AXIS, added_four)


@triton.jit
def added_two(a0, a1, b0, b1):
    """Return two sums of two, as `tl.reduce` wants them."""
    return a0 + b0, a1 + b1


@triton.jit
def sum_two(first, second, AXIS: tl.constexpr):
    """Return two sums along an axis; warps meet once for both of them."""
    return tl.reduce((first, second), AXIS, added_two)


@triton.jit
def choose_four(index, first, second, third, fourth):
    """Return the one of four that `index`, from 0 to 3, says: four vectors become one tile, which is stored at once."""
    return tl.where(index < 2, tl.where(index == 0, first, second), tl.where(index == 2, third, fourth))


@triton.jit
def store_vectors(row, first, second, third, fourth, channel, C: tl.constexpr, COUNT: tl.constexpr):
    """Store the first COUNT of four vectors of C numbers, one after the other."""
    four = tl.arange(0, 4)[:, None]
    vectors = choose_four(four, first[None, :], second[None, :], third[None, :], fourth[None, :])
    tl.store(row + four * C + channel[None, :], vectors, mask=(four < COUNT) & (channel < C)[None, :])


@triton.jit
def read_norms(moments, y_moments, y_sums, sample, voxels, span, eps, C: tl.constexpr, SPLITS: tl.constexpr):
    """Return what `read_moments` does of x and of y, and the two sums of `read_sums`."""
    part = tl.arange(0, SPLITS)
    count = tl.minimum(tl.maximum(voxels - part * span, 0), span).to(tl.float32) * C
    place = (sample * SPLITS + part) * 2
    means, squares = tl.load(moments + place), tl.load(moments + place + 1)
    y_means, y_squares = tl.load(y_moments + place), tl.load(y_moments + place + 1)
    firsts, seconds = tl.load(y_sums + place), tl.load(y_sums + place + 1)
    total = voxels * 1.0 * C
    mean, y_mean, first, second = sum_four(count * means, count * y_means, firsts, seconds, 0)
    mean, y_mean = mean / total, y_mean / total
    away, y_away = means - mean, y_means - y_mean
    squares, y_squares = sum_two(squares + count * away * away, y_squares + count * y_away * y_away, 0)
    deviation, y_deviation = 1.0 / tl.sqrt(squares / total + eps), 1.0 / tl.sqrt(y_squares / total + eps)
    return mean, deviation, y_mean, y_deviation, first, second


@triton.jit
def read_matrix(weight, place, square, DOT: tl.constexpr):
    """Return a matrix in the type to which `product` rounds it."""
    return rounded(tl.load(weight + place, mask=square, other=0.0), DOT)


@triton.jit
def rounded(a, DOT: tl.constexpr):
    """Return an operand of products in the type to which `product` rounds it."""
    if DOT == "bf16":
        return a.to(tl.bfloat16)
    elif DOT == "fp16":
        return a.to(tl.float16)
    else:
        return a


@triton.jit
def product(a, b, DOT: tl.constexpr):
    """Return the matrix product with float32 sums; DOT is "bf16" or "fp16" where operands are rounded first."""
    if DOT == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif DOT == "fp16":
        return tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_moments(count, mean, squares, values, keep, start, voxels, C: tl.constexpr):
    """Merge a tile into (count, mean, sum of squared deviations) by Chan's rule, and return the three.

    `start` is the first of its voxels, and `keep` says which of its elements exist.
    """
    added = tl.minimum(tl.maximum(voxels - start, 0), keep.shape[0]) * 1.0 * C
    tile_mean = tl.sum(tl.where(keep, values, 0.0)) / tl.maximum(added, 1.0)
    deviation = tl.where(keep, values - tile_mean, 0.0)
    total = count + added
    share = added / tl.maximum(total, 1.0)
    step = tile_mean - mean
    return total, mean + step * share, squares + tl.sum(deviation * deviation) + step * step * count * share


@triton.jit
def read_moments(moments, sample, voxels, span, eps, C: tl.constexpr, SPLITS: tl.constexpr):
    """Return mean and 1 / sqrt(variance + eps) of a sample from its programs' moments, (samples, SPLITS, 2)."""
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
    """Return the two sums of a sample from the shares of its programs, (samples, SPLITS, 2)."""
    part = tl.arange(0, SPLITS)
    first = tl.load(sums + (sample * SPLITS + part) * 2)
    second = tl.load(sums + (sample * SPLITS + part) * 2 + 1)
    return tl.sum(first), tl.sum(second)


@triton.jit
def norm_backward(gradient, normal, scale, deviation, first, second, count):
    """Return dL/dy from g = dL/dnorm(y), the scale s and the normalised value n:

        dL/dy = (g s - (sum g s + n sum g s n) / count) * deviation

    `deviation` is 1 / sqrt(variance + eps), `first` and `second` are the two sums.
    """
    return (gradient * scale - (first + normal * second) / count) * deviation


@triton.jit
def through_norm(gradient, y, keep, mean, deviation, scale, first, second, count):
    """Return what `norm_backward` does, from y itself and its mean, with zeros where no elements exist."""
    return tl.where(keep, norm_backward(gradient, (y - mean) * deviation, scale, deviation, first, second, count), 0.0)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def gelu_terms(z):
    """Return Phi(z), the distribution function of the normal distribution, and phi(z), its density."""
    return 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)), 0.3989422804014327 * tl.exp(-0.5 * z * z)


@triton.jit
def gelu_tail(z):
    """Return Phi(-|z|) = 2^Q(|z|) with an error of at most 4e-8, half the rounding of float32 near 1, without branches.

    Q is the polynomial of degree eight with Q(0) = -1 that makes the largest error of max(1, |z|) Phi(-|z|) on [0, 5.5]
    least; beyond, it falls without end. With it Phi(z) = 1 - 2^Q for z > 0, and z Phi(z) = max(z, 0) - |z| 2^Q.
    """
    away = tl.abs(z)
    q = -2.3349400635197526e-06 * away + 3.3737716876203194e-05
    q = q * away - 1.6129339928738773e-04
    q = q * away - 1.9170453015249223e-04
    q = q * away + 7.12686637416482e-03
    q = q * away - 5.253361538052559e-02
    q = q * away - 4.591982960700989e-01
    q = q * away - 1.1511059999465942
    return tl.exp2(q * away - 1.0)


@triton.jit
def rational_terms(h, numerator, denominator, group, valid):
    """Return the parts of F(h) = above / (1 + |below|): above, below, and their derivatives with respect to h."""
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
    above_derivative = (((5 * a5 * h + 4 * a4) * h + 3 * a3) * h + 2 * a2) * h + a1
    below_derivative = ((4 * b4 * h + 3 * b3) * h + 2 * b2) * h + b1
    return above, below, above_derivative, below_derivative


@triton.jit
def add_rows(partial, out, rows, width, at, few, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute out[c] = sum over rows r of partial[r, c], BLOCK columns per program, always in the same order.

    Columns from `at` on have `few` rows, the others `rows`.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    filled = tl.where(column < at, rows, few)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, tl.max(filled), ROWS):
        keep = (start + row[:, None] < filled[None, :]) & (column < width)[None, :]
        total += tl.load(partial + (start + row)[:, None] * width + column[None, :], mask=keep, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < width)
