"""Kernel of crops: images and labels of one iteration, gathered along walks through stored volumes."""

import triton
import triton.language as tl


@triton.jit
def gather_crops(
    iteration, walks, stored, tables, stored_labels, low, high, images, labels, crop_low, crop_high, total, labelled,
    X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr, C: tl.constexpr, CODED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK voxels of a crop: voxel (i, j, k) is the one at a + i x + j y + k z of the stored ones, (C, total).

    A row of `walks`, (iterations, crops, 5) int64, is (a, x, y, z, case). Codes are looked up in `tables`, (cases, C,
    256). Only the first `labelled` crops have labels. The first program of a crop copies the extremes of its case, (C).
    """
    part, crop = tl.program_id(0), tl.program_id(1)
    walk = walks + (tl.load(iteration) * tl.num_programs(1) + crop) * 5
    case = tl.load(walk + 4)
    voxel = part * BLOCK + tl.arange(0, BLOCK)
    real = voxel < X * Y * Z
    at = tl.load(walk) + voxel // (Y * Z) * tl.load(walk + 1)
    at += voxel // Z % Y * tl.load(walk + 2) + voxel % Z * tl.load(walk + 3)
    own = crop.to(tl.int64) * (X * Y * Z)
    if crop < labelled:
        tl.store(labels + own + voxel, tl.load(stored_labels + at, mask=real, other=0).to(tl.int64), mask=real)
    for channel in tl.static_range(C):
        value = tl.load(stored + at, mask=real, other=0)
        if CODED:
            value = tl.load(tables + (case * C + channel) * 256 + value.to(tl.int32), mask=real, other=0.0)
        tl.store(images + own * C + channel * (X * Y * Z) + voxel, value, mask=real)
        at += total
        if part == 0:
            tl.store(crop_low + crop * C + channel, tl.load(low + case * C + channel))
            tl.store(crop_high + crop * C + channel, tl.load(high + case * C + channel))
