"""Kernels of a one-group norm of y with a GELU behind it, w = GELU(u), u = n scale + shift, n the normalised y.

The moments are those of `norm.find_moments`. The passes back compute u again: dL/du = dL/dw (Phi(u) + u phi(u)).
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import (
    gelu_terms,
    norm_backward,
    read_moments,
    read_row,
    read_sums,
    store_pair,
    tile_at,
)


@triton.jit
def through_gelu(gradient, u):
    """Return dL/du from dL/dGELU(u)."""
    below, density = gelu_terms(u)
    return gradient * (below + u * density)


@triton.jit
def gelu_norm(
    y, moments, scale, shift, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute out = GELU(norm(y))."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        u = (tl.load(y + place, mask=keep, other=0.0) - mean) * deviation * factor + offset
        below, _ = gelu_terms(u)
        tl.store(out + place, u * below, mask=keep)


@triton.jit
def gelu_norm_sums(
    output_gradient, y, moments, scale, shift, sums, partial, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute the sums that dL/dy needs from dL/dw, and the gradients of scale and shift, (samples SPLITS, 2 C)."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    valid = channel < C
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    scale_gradient = tl.zeros([CP], tl.float32)
    shift_gradient = tl.zeros([CP], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(y + place, mask=keep, other=0.0) - mean) * deviation
        gradient = through_gelu(tl.load(output_gradient + place, mask=keep, other=0.0), normal * factor + offset)
        scale_gradient += tl.sum(gradient * normal, axis=0)
        shift_gradient += tl.sum(gradient, axis=0)
    weights = tl.load(scale + channel, mask=valid, other=0.0)
    program = sample * SPLITS + part
    store_pair(sums, program, tl.sum(weights * shift_gradient), tl.sum(weights * scale_gradient))
    tl.store(partial + program * 2 * C + channel, scale_gradient, mask=valid)
    tl.store(partial + program * 2 * C + C + channel, shift_gradient, mask=valid)


@triton.jit
def gelu_norm_gradient(
    output_gradient, y, moments, sums, scale, shift, out, voxels, span, eps,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dy from dL/dw."""
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CP)
    mean, deviation = read_moments(moments, sample, voxels, span, eps, C, SPLITS)
    first, second = read_sums(sums, sample, SPLITS)
    factor, offset = read_row(scale, channel, C), read_row(shift, channel, C)
    for start in range(part * span, part * span + span, BLOCK):
        _, _, keep, place = tile_at(start, sample, voxels, channel, C, BLOCK)
        normal = (tl.load(y + place, mask=keep, other=0.0) - mean) * deviation
        gradient = through_gelu(tl.load(output_gradient + place, mask=keep, other=0.0), normal * factor + offset)
        value = norm_backward(gradient, normal, factor, deviation, first, second, voxels * 1.0 * C)
        tl.store(out + place, value, mask=keep)
