"""Kernels of the norm of each channel: moments of every sample and channel, and the second pass of its gradient.

Moments are (samples, SPLITS, 2, C): the mean and the sum of squared deviations of each program's voxels.
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import norm_backward, read_row, sum_two, tile_at


@triton.jit
def find_channel_moments(
    y, moments, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute the moments of y, by Welford's rule in each row of the tile and by Chan's for all rows at the end."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    count = tl.zeros([BLOCK, 1], tl.float32)
    mean = tl.zeros([BLOCK, CP], tl.float32)
    squares = tl.zeros([BLOCK, CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        _, rows, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        count += rows.to(tl.float32)[:, None]
        value = tl.load(y + place, mask=keep, other=0.0).to(tl.float32)
        away = tl.where(keep, value - mean, 0.0)
        mean += away * (1.0 / tl.maximum(count, 1.0))
        squares += away * (value - mean)
    centre = tl.sum(count * mean, axis=0) / tl.maximum(tl.sum(count), 1.0)
    away = mean - centre[None, :]
    row = moments + (sample * SPLITS + part) * 2 * C + channel
    tl.store(row, centre, mask=channel < C)
    tl.store(row + C, tl.sum(squares + count * away * away, axis=0), mask=channel < C)


@triton.jit
def read_channel_moments(
    moments, sample, voxels, span, eps, channel, C: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Return mean and 1 / sqrt(variance + eps) of each channel of a sample, each (1, channels)."""
    part = tl.arange(0, SPLITS)
    count = tl.minimum(tl.maximum(voxels - part * span, 0), span).to(tl.float32)[:, None]
    place = moments + (sample * SPLITS + part)[:, None] * 2 * C + channel[None, :]
    valid = (part >= 0)[:, None] & (channel < C)[None, :]
    means = tl.load(place, mask=valid, other=0.0)
    squares = tl.load(place + C, mask=valid, other=0.0)
    total = voxels * 1.0  # not `.to`: a whole number that is 1 arrives as a constant
    mean = tl.sum(count * means, axis=0)[None, :] / total
    away = means - mean
    variance = tl.sum(squares + count * away * away, axis=0)[None, :] / total
    return mean, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def channel_norm_gradient(
    output_gradient, y, moments, scale, partial, width, at, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dy from dL/dnorm(y); `out` may be `output_gradient` itself.

    The rows of `partial` hold each program's share of the gradients of scale and shift, (C) and (C), from `at` on.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    factor = read_row(scale, channel, C)
    share = partial + (sample * SPLITS + tl.arange(0, SPLITS))[:, None] * width + at + channel[None, :]
    valid = (tl.arange(0, SPLITS) >= 0)[:, None] & (channel < C)[None, :]
    second = factor * tl.sum(tl.load(share, mask=valid, other=0.0), axis=0)[None, :]
    first = factor * tl.sum(tl.load(share + C, mask=valid, other=0.0), axis=0)[None, :]
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0).to(tl.float32)
        normal = (tl.load(y + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation
        value = norm_backward(gradient, normal, factor, deviation, first, second, voxels * 1.0)
        tl.store(out + place, value, mask=keep)


@triton.jit
def channel_norm_forward(
    y, moments, scale, shift, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute out = (y - mean) / deviation * scale + shift in the type of `out`."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    factor = deviation * read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        value = tl.load(y + place, mask=keep, other=0.0).to(tl.float32)
        tl.store(out + place, (value - mean) * factor + offset, mask=keep)


@triton.jit
def channel_norm_sums(
    output_gradient, y, moments, partial, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store each program's share of the gradients of scale and shift, (C) and (C), as its row of `partial`."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_channel_moments(moments, sample, voxels, span, eps, channel, C, SPLITS)
    by_normal, by_one = tl.zeros([BLOCK, CP], tl.float32), tl.zeros([BLOCK, CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0).to(tl.float32)
        by_normal += gradient * ((tl.load(y + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation)
        by_one += gradient
    scale_gradient, shift_gradient = sum_two(by_normal, by_one, 0)
    row = partial + (sample * SPLITS + part) * 2 * C + channel
    tl.store(row, scale_gradient, mask=channel < C)
    tl.store(row + C, shift_gradient, mask=channel < C)
