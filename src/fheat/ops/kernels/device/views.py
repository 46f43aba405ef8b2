"""Kernel of the views from which CSE learns: labelled crops, strongly changed ones, and the mixture of two."""

import triton
import triton.language as tl


@triton.jit
def neighbours(index, CELLS: tl.constexpr, LENGTH: tl.constexpr):
    """Return the two cells between whose centres voxels lie along an axis, and how far they are on the way."""
    place = tl.maximum((index + 0.5) * (CELLS / LENGTH) - 0.5, 0.0)
    cell = place.to(tl.int32)
    return cell, tl.minimum(cell + 1, CELLS - 1), place - cell


@triton.jit
def kept_along(kept, line, near, far, way, real, DROPPED: tl.constexpr):
    """Return how much is kept of voxels on a line of cells, interpolated along it: those cells count that are above
    DROPPED."""
    one = tl.where(tl.load(kept + line + near, mask=real, other=0.0) > DROPPED, 1.0, 0.0)
    other = tl.where(tl.load(kept + line + far, mask=real, other=0.0) > DROPPED, 1.0, 0.0)
    return (1.0 - way) * one + way * other


@triton.jit
def change_and_mix(
    images, weak, low, high, power, strength, chance, white, kept, choice, out, mask, white_crop, white_channel,
    X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr, GX: tl.constexpr, GY: tl.constexpr, GZ: tl.constexpr,
    BX: tl.constexpr, BY: tl.constexpr, BZ: tl.constexpr, SX: tl.constexpr, SY: tl.constexpr, SZ: tl.constexpr,
    LARGEST: tl.constexpr, PROBABILITY: tl.constexpr, DROPPED: tl.constexpr, LABELLED: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write BLOCK voxels of a crop into `out`, (3 crops, C, X, Y, Z): labelled, strong, mixed; see
    `fheat.ops.kernels.views.change_and_mix`. The programs of the first crop write `mask` (X, Y, Z).
    """
    part, crop, crops = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    voxel = part * BLOCK + tl.arange(0, BLOCK)
    real = voxel < X * Y * Z
    i, j, k = voxel // (Y * Z), voxel // Z % Y, voxel % Z
    box = tl.load(choice).to(tl.int32)
    i_box, j_box, k_box = i - box // 9 * SX, j - box // 3 % 3 * SY, k - box % 3 * SZ
    own = (i_box >= 0) & (i_box < BX) & (j_box >= 0) & (j_box < BY) & (k_box >= 0) & (k_box < BZ)
    if not LABELLED:
        own = own == 0
    if crop == 0:
        tl.store(mask + voxel, own.to(tl.uint8), mask=real)
    i_near, i_far, i_way = neighbours(i, GX, X)
    j_near, j_far, j_way = neighbours(j, GY, Y)
    k_near, k_far, k_way = neighbours(k, GZ, Z)
    kept += crop * (GX * GY * GZ)
    near = (1.0 - j_way) * kept_along(kept, (i_near * GY + j_near) * GZ, k_near, k_far, k_way, real, DROPPED)
    near += j_way * kept_along(kept, (i_near * GY + j_far) * GZ, k_near, k_far, k_way, real, DROPPED)
    far = (1.0 - j_way) * kept_along(kept, (i_far * GY + j_near) * GZ, k_near, k_far, k_way, real, DROPPED)
    far += j_way * kept_along(kept, (i_far * GY + j_far) * GZ, k_near, k_far, k_way, real, DROPPED)
    left = (1.0 - i_way) * near + i_way * far
    exponent = tl.load(power + crop)
    deviation = tl.where(tl.load(chance + crop) < PROBABILITY, tl.load(strength + crop) * LARGEST, 0.0)
    for channel in tl.static_range(C):
        first = (crop.to(tl.int64) * C + channel) * (X * Y * Z)
        x = tl.load(weak + first + voxel, mask=real, other=0.0)
        image = tl.load(images + first + voxel, mask=real, other=0.0)
        noise = tl.load(white + crop.to(tl.int64) * white_crop + channel * white_channel + voxel, mask=real, other=0.0)
        bottom, top = tl.load(low + crop * C + channel), tl.load(high + crop * C + channel)
        base = (x - bottom) / (top - bottom + 1e-7)
        below = base <= 0.0
        raised = tl.where(below, 0.0, tl.exp2(exponent * tl.log2(tl.where(below, 1.0, base))))
        next_view = crops.to(tl.int64) * C * (X * Y * Z)
        place = out + first + voxel
        tl.store(place, image, mask=real)
        tl.store(place + next_view, (raised + deviation * noise) * left, mask=real)
        tl.store(place + 2 * next_view, tl.where(own, image, x), mask=real)
