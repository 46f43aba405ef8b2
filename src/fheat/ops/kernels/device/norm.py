"""Kernels of the one-group norm: moments, normalisation with a residual, and the two passes of its gradient."""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import (
    add_moments,
    norm_backward,
    read_moments,
    read_row,
    read_sums,
    store_pair,
    sum_two,
    tile_at,
)


@triton.jit
def residual_norm(
    x, y, moments, scale, shift, out, out_moments, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Compute out = norm(y); with ADD compute out = x + norm(y) and the moments of out."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor = read_row(scale, channel, C)
    offset = read_row(shift, channel, C)
    count, centre, squares = 0.0, 0.0, 0.0
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        value = (tl.load(y + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation * factor + offset
        if ADD:
            value += tl.load(x + place, mask=keep, other=0.0)
            count, centre, squares = add_moments(count, centre, squares, value, keep, start, voxels, C)
        tl.store(out + place, value, mask=keep)
    if ADD:
        store_pair(out_moments, sample * SPLITS + part, centre, squares)


@triton.jit
def find_moments(
    x, moments, kept, flag, voxels, span,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, FLAG: tl.constexpr,
):  # fmt: skip
    """Compute the moments of x. With FLAG they are `kept` if the flag is set."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    count, centre, squares = 0.0, 0.0, 0.0
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        value = tl.load(x + place, mask=keep, other=0.0).to(tl.float32)
        count, centre, squares = add_moments(count, centre, squares, value, keep, start, voxels, C)
    program = sample * SPLITS + part
    if FLAG:
        if tl.load(flag) != 0:
            centre, squares = tl.load(kept + program * 2), tl.load(kept + program * 2 + 1)
    store_pair(moments, program, centre, squares)


@triton.jit
def norm_sums(
    output_gradient, y, moments, scale, sums, partial, width, at, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute the sums that dL/dy needs from dL/dnorm(y), and the gradients of scale and shift from `at` on.

    A program adds up TILES tiles, and their rows once, at the end.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    factor = tl.load(scale + channel, mask=valid, other=0.0)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    scale_gradient = tl.zeros([BLOCK, CP], tl.float32)
    shift_gradient = tl.zeros([BLOCK, CP], tl.float32)
    for tile in range(TILES):
        _, _, keep, place = tile_at(part * span + tile * BLOCK, sample, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0).to(tl.float32)
        normal = (tl.load(y + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation
        scale_gradient += gradient * normal
        shift_gradient += gradient
    stretched, shifted = sum_two(scale_gradient, shift_gradient, 0)
    program = sample * SPLITS + part
    row = partial + program * width + at
    two = tl.arange(0, 2)[:, None]
    vectors = tl.where(two == 0, stretched[None, :], shifted[None, :])
    tl.store(row + two * C + channel[None, :], vectors, mask=valid[None, :])
    shifted, stretched = sum_two(shifted * factor, stretched * factor, 0)
    store_pair(sums, program, shifted, stretched)


@triton.jit
def norm_gradient(
    residual, output_gradient, y, moments, sums, scale, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dy from dL/dnorm(y); with ADD, plus `residual`."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    first, second = read_sums(sums, sample, SPLITS)
    factor = read_row(scale, channel, C)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        gradient = tl.load(output_gradient + place, mask=keep, other=0.0).to(tl.float32)
        normal = (tl.load(y + place, mask=keep, other=0.0).to(tl.float32) - mean) * deviation
        value = norm_backward(gradient, normal, factor, deviation, first, second, voxels * 1.0 * C)
        if ADD:
            value += tl.load(residual + place, mask=keep, other=0.0)
        tl.store(out + place, value, mask=keep)
