"""Kernels that turn rows of patches into volumes with channels first, and back.

A row of z is a voxel of a grid (X, Y, Z) and holds, channel after channel, a patch of SIDE voxels per axis. A volume is
(samples, K, SIDE X, SIDE Y, SIDE Z). An item is a line of SIDE voxels along the last axis of one channel; items lie
patch after patch, so that z is read and written in order.
"""

import triton
import triton.language as tl


@triton.jit
def places(item, image, items, Y, Z, K: tl.constexpr, SIDE: tl.constexpr):
    """Return the offsets of lines in z and in the volume, (BLOCK, SIDE), and which exist; `image` is a channel."""
    voxel, line = item // (SIDE * SIDE), item % (SIDE * SIDE)
    along = tl.arange(0, SIDE)[None, :]
    row = (image // K * (items // (SIDE * SIDE)) + voxel) * K + image % K
    in_z = (row * (SIDE * SIDE) + line)[:, None] * SIDE + along
    a = voxel // (Y * Z) * SIDE + line // SIDE
    b = voxel // Z % Y * SIDE + line % SIDE
    in_volume = (image * items + (a * Y * SIDE + b) * Z + voxel % Z)[:, None] * SIDE + along
    return in_z, in_volume, (item < items)[:, None] & (along < SIDE)


@triton.jit
def to_volume(z, bias, volume, items, Y, Z, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the volume of z + bias, a number per channel; the grid is (blocks, samples K)."""
    image = tl.program_id(1)
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_z, in_volume, keep = places(item, image, items, Y, Z, K, SIDE)
    value = tl.load(z + in_z, mask=keep, other=0.0).to(tl.float32) + tl.load(bias + image % K)
    tl.store(volume + in_volume, value, mask=keep)


@triton.jit
def to_rows(volume, z, shares, items, span, Y, Z, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Compute z of a volume, and the sums of each channel, (samples, parts, K); the grid is (parts, samples K)."""
    part, image = tl.program_id(0), tl.program_id(1)
    total = tl.zeros([BLOCK, SIDE], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        in_z, in_volume, keep = places(start + tl.arange(0, BLOCK), image, items, Y, Z, K, SIDE)
        value = tl.load(volume + in_volume, mask=keep, other=0.0)
        total += value.to(tl.float32)
        tl.store(z + in_z, value, mask=keep)
    tl.store(shares + (image // K * tl.num_programs(0) + part) * K + image % K, tl.sum(total))
