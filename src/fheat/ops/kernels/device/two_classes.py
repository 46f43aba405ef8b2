"""Kernels of the losses for two classes and at most two regions: all that they hold is one number per voxel.

Tiles of classes and regions, as in `fheat.ops.kernels.device.losses`, are passed between threads through shared memory,
28 to 42 times per tile, and that takes longer than to read the logits. Here each thread keeps its voxels to itself.
Logits are (samples, 2, voxels), or (samples, voxels, 2) with LAST. With d = l1 - l0 and e = exp(-|d|), the larger
probability is 1 / (1 + e), the smaller one e / (1 + e).
"""

import triton
import triton.language as tl


@triton.jit
def read_pair(logits, target, region, voxel, sample, voxels, MASKED: tl.constexpr, LAST: tl.constexpr):
    """Return of voxels: d, e, the two probabilities, class, and region, which is 255 beyond the last voxel."""
    real = voxel < voxels
    logits += sample.to(tl.int64) * 2 * voxels
    if LAST:
        first = tl.load(logits + 2 * voxel, mask=real, other=0.0).to(tl.float32)
        second = tl.load(logits + 2 * voxel + 1, mask=real, other=0.0).to(tl.float32)
    else:
        first = tl.load(logits + voxel, mask=real, other=0.0).to(tl.float32)
        second = tl.load(logits + voxels + voxel, mask=real, other=0.0).to(tl.float32)
    at = sample.to(tl.int64) * voxels + voxel
    number = tl.load(target + at, mask=real, other=0).to(tl.int32)
    where = tl.load(region + at, mask=real, other=255).to(tl.int32) if MASKED else tl.where(real, 0, 255)
    gap = second - first
    small = tl.exp(-tl.abs(gap))
    more = 1.0 / (1.0 + small)
    less = small * more
    return gap, small, tl.where(gap > 0, less, more), tl.where(gap > 0, more, less), number, where


@triton.jit
def add_voxels(inside, number, surprise, p, q, entropy, overlap, overlap_2, mass, mass_2, squares, squares_2, n, n_2):
    """Return the sums of a region, those of `fheat.ops.voxel_sums.VoxelSums` class by class, with more voxels."""
    first, second = inside & (number == 0), inside & (number == 1)
    p, q = tl.where(inside, p, 0.0), tl.where(inside, q, 0.0)
    entropy += tl.where(inside, surprise, 0.0)
    overlap += tl.where(first, p, 0.0)
    overlap_2 += tl.where(second, q, 0.0)
    n += tl.where(first, 1.0, 0.0)
    n_2 += tl.where(second, 1.0, 0.0)
    return entropy, overlap, overlap_2, mass + p, mass_2 + q, squares + p * p, squares_2 + q * q, n, n_2


@triton.jit
def store_region(to, entropy, overlap, overlap_2, mass, mass_2, squares, squares_2, n, n_2):
    """Store the nine sums of a region over the voxels of a program."""
    tl.store(to, tl.sum(entropy))
    tl.store(to + 1, tl.sum(overlap))
    tl.store(to + 2, tl.sum(overlap_2))
    tl.store(to + 3, tl.sum(mass))
    tl.store(to + 4, tl.sum(mass_2))
    tl.store(to + 5, tl.sum(squares))
    tl.store(to + 6, tl.sum(squares_2))
    tl.store(to + 7, tl.sum(n))
    tl.store(to + 8, tl.sum(n_2))


@triton.jit
def sum_pairs(
    logits, target, region, partial, voxels, span,
    R: tl.constexpr, MASKED: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store each program's sums, (samples, programs, R, 9): entropy, overlap, mass, squares, voxels."""
    sample, part = tl.program_id(0), tl.program_id(1)
    none = tl.zeros([BLOCK], tl.float32)
    a, b, c, d, e, f, g, h, i = none, none, none, none, none, none, none, none, none
    a_2, b_2, c_2, d_2, e_2, f_2, g_2, h_2, i_2 = none, none, none, none, none, none, none, none, none
    for start in range(part * span, part * span + span, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        gap, small, p, q, number, where = read_pair(logits, target, region, voxel, sample, voxels, MASKED, LAST)
        missed = (number == 1) != (gap > 0)
        surprise = tl.log(1.0 + small) + tl.where(missed, tl.abs(gap), 0.0)
        surprise = tl.where(number < 2, surprise, float("nan"))  # a label that is no class must not pass unseen
        a, b, c, d, e, f, g, h, i = add_voxels(where == 0, number, surprise, p, q, a, b, c, d, e, f, g, h, i)
        if R == 2:
            a_2, b_2, c_2, d_2, e_2, f_2, g_2, h_2, i_2 = add_voxels(
                where == 1, number, surprise, p, q, a_2, b_2, c_2, d_2, e_2, f_2, g_2, h_2, i_2
            )
    partial += (sample * tl.num_programs(1) + part) * R * 9
    store_region(partial, a, b, c, d, e, f, g, h, i)
    if R == 2:
        store_region(partial + 9, a_2, b_2, c_2, d_2, e_2, f_2, g_2, h_2, i_2)


@triton.jit
def pairs_gradient(
    output_gradients, logits, target, region, out, voxels, span,
    R: tl.constexpr, MASKED: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dlogits from the gradients E, A, B, C of entropy, overlap, mass and squares.

        dL/dl1 = -dL/dl0 = E (p1 - g1) + p0 p1 (u1 - u0),    u = A g + B + 2 C p

    `output_gradients` is (samples, R, 7); each voxel uses those of its region, and is 0 outside all regions.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    own = output_gradients + sample * R * 7
    more = own + 7 * (R - 1)
    for start in range(part * span, part * span + span, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        _, _, p, q, number, where = read_pair(logits, target, region, voxel, sample, voxels, MASKED, LAST)
        hit, next_one = number == 1, where == 1
        entropy = tl.where(next_one, tl.load(more), tl.load(own))
        overlap = tl.where(next_one, tl.load(more + 1), tl.load(own + 1))
        overlap_2 = tl.where(next_one, tl.load(more + 2), tl.load(own + 2))
        mass = tl.where(next_one, tl.load(more + 4) - tl.load(more + 3), tl.load(own + 4) - tl.load(own + 3))
        squares = tl.where(next_one, tl.load(more + 5), tl.load(own + 5))
        squares_2 = tl.where(next_one, tl.load(more + 6), tl.load(own + 6))
        tilt = tl.where(hit, overlap_2, -overlap) + mass + 2.0 * (squares_2 * q - squares * p)
        gradient = entropy * tl.where(hit, -p, q) + p * q * tilt
        gradient = tl.where(where < R, gradient, 0.0)
        place = out + sample.to(tl.int64) * 2 * voxels
        if LAST:
            tl.store(place + 2 * voxel, -gradient, mask=voxel < voxels)
            tl.store(place + 2 * voxel + 1, gradient, mask=voxel < voxels)
        else:
            tl.store(place + voxel, -gradient, mask=voxel < voxels)
            tl.store(place + voxels + voxel, gradient, mask=voxel < voxels)
