"""Kernels of a batch norm in training with a GELU behind it, for few rows: y = gelu(n scale + shift).

n = (x - mean) deviation, with the moments of each channel over all rows and deviation = 1 / sqrt(variance + eps). A
program has WIDTH channels and all rows, BLOCK at a time, so that no sum is spread over programs. `x` (rows, C).
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import gelu_terms


@triton.jit
def tile_of(start, rows, channel, C: tl.constexpr, BLOCK: tl.constexpr):
    """Return the offsets of a tile, and which of its elements exist."""
    row = start + tl.arange(0, BLOCK)
    return row[:, None] * C + channel[None, :], (row < rows)[:, None] & (channel < C)[None, :]


@triton.jit
def norm_gelu(
    x, scale, shift, out, moments, running_mean, running_variance, tracked, rows, eps, momentum,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute y, `moments` (2, C) with mean and deviation, and the running moments; `tracked` counts the calls."""
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    valid = channel < C
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, rows, BLOCK):
        place, keep = tile_of(start, rows, channel, C, BLOCK)
        total += tl.load(x + place, mask=keep, other=0.0)
    mean = tl.sum(total, axis=0) / rows
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, rows, BLOCK):
        place, keep = tile_of(start, rows, channel, C, BLOCK)
        away = tl.where(keep, tl.load(x + place, mask=keep, other=0.0) - mean[None, :], 0.0)
        total += away * away
    squares = tl.sum(total, axis=0)
    deviation = 1.0 / tl.sqrt(squares / rows + eps)
    factor = tl.load(scale + channel, mask=valid, other=0.0)
    offset = tl.load(shift + channel, mask=valid, other=0.0)
    for start in range(0, rows, BLOCK):
        place, keep = tile_of(start, rows, channel, C, BLOCK)
        n = (tl.load(x + place, mask=keep, other=0.0) - mean[None, :]) * deviation[None, :]
        z = n * factor[None, :] + offset[None, :]
        above, _ = gelu_terms(z)
        tl.store(out + place, z * above, mask=keep)
    tl.store(moments + channel, mean, mask=valid)
    tl.store(moments + C + channel, deviation, mask=valid)
    old_mean = tl.load(running_mean + channel, mask=valid)
    old_variance = tl.load(running_variance + channel, mask=valid)
    tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), mask=valid)
    tl.store(running_variance + channel, old_variance + momentum * (squares / (rows - 1) - old_variance), mask=valid)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def norm_gelu_gradient(
    x, scale, shift, moments, output_gradient, gradient, parameter_gradients, rows,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dL/dx, and `parameter_gradients` (2, C) with dL/dscale and dL/dshift."""
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    valid = channel < C
    mean = tl.load(moments + channel, mask=valid, other=0.0)[None, :]
    deviation = tl.load(moments + C + channel, mask=valid, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=valid, other=0.0)[None, :]
    offset = tl.load(shift + channel, mask=valid, other=0.0)[None, :]
    first = tl.zeros([BLOCK, WIDTH], tl.float32)
    second = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, rows, BLOCK):
        place, keep = tile_of(start, rows, channel, C, BLOCK)
        n = (tl.load(x + place, mask=keep, other=0.0) - mean) * deviation
        z = n * factor + offset
        above, density = gelu_terms(z)
        inner = tl.load(output_gradient + place, mask=keep, other=0.0) * (above + z * density)
        first += inner
        second += inner * n
    of_shift = tl.sum(first, axis=0)
    of_scale = tl.sum(second, axis=0)
    for start in range(0, rows, BLOCK):
        place, keep = tile_of(start, rows, channel, C, BLOCK)
        n = (tl.load(x + place, mask=keep, other=0.0) - mean) * deviation
        z = n * factor + offset
        above, density = gelu_terms(z)
        inner = tl.load(output_gradient + place, mask=keep, other=0.0) * (above + z * density)
        value = factor * deviation * (inner - (of_shift[None, :] + n * of_scale[None, :]) / rows)
        tl.store(gradient + place, value, mask=keep)
    tl.store(parameter_gradients + channel, of_scale, mask=valid)
    tl.store(parameter_gradients + C + channel, of_shift, mask=valid)
