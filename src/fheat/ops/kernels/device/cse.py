"""Kernels of the loss of CSE: what each voxel is compared with, and the loss and its slopes from sums over voxels."""

import triton
import triton.language as tl


@triton.jit
def set_targets(
    labels, mask, pseudo, label, accepted, target, region, voxels, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write BLOCK voxels of three crops of `target` and `region`, (3 crops, voxels), see `fheat.ops.kernels.cse`."""
    part, crop, crops = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    voxel = part * BLOCK + tl.arange(0, BLOCK)
    real = voxel < voxels
    at = crop.to(tl.int64) * voxels + voxel
    known = tl.load(labels + at, mask=real, other=0).to(tl.uint8)
    own = tl.load(mask + voxel, mask=real, other=0) != 0
    guess = tl.load(pseudo + at, mask=real, other=0)
    sure = tl.load(accepted + at, mask=real, other=0) != 0
    next_view = crops.to(tl.int64) * voxels
    tl.store(target + at, known, mask=real)
    tl.store(target + next_view + at, tl.load(label + at, mask=real, other=0), mask=real)
    tl.store(target + 2 * next_view + at, tl.where(own, known, guess), mask=real)
    tl.store(region + at, tl.zeros([BLOCK], tl.uint8), mask=real)
    tl.store(region + next_view + at, tl.where(sure, 0, 255).to(tl.uint8), mask=real)
    tl.store(region + 2 * next_view + at, tl.where(own, 0, 1).to(tl.uint8), mask=real)


@triton.jit
def quotient(overlap, total, EPSILON: tl.constexpr):
    """Return (2 overlap + e) / (total + e), and its slopes along overlap and total."""
    below = total + EPSILON
    share = (2.0 * overlap + EPSILON) / below
    return share, 2.0 / below, -share / below


@triton.jit
def weigh_sums(
    sums, losses, slopes, crops, voxels, consistency, mix,
    SHARP: tl.constexpr, SMOOTH: tl.constexpr, PSEUDO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the losses (5,) of sums over voxels, (3 crops, 2, 9), and the slopes of the first of them, (3 crops, 2, 7).

    One program holds all, BLOCK rows of a crop and a region. First come labelled crops, then those of the strong view,
    then mixed ones; see `fheat.ops.kernels.cse.weighed_losses`.
    """
    row = tl.arange(0, BLOCK)
    real = row < 6 * crops
    labelled, strong, mixed = row < 2 * crops, (row >= 2 * crops) & (row < 4 * crops), (row >= 4 * crops) & real
    entropy = tl.load(sums + row * 9, mask=real, other=0.0)
    overlap = tl.load(sums + row * 9 + 1, mask=real, other=0.0)
    overlap_2 = tl.load(sums + row * 9 + 2, mask=real, other=0.0)
    mass = tl.load(sums + row * 9 + 3, mask=real, other=0.0)
    mass_2 = tl.load(sums + row * 9 + 4, mask=real, other=0.0)
    squares = tl.load(sums + row * 9 + 5, mask=real, other=0.0)
    squares_2 = tl.load(sums + row * 9 + 6, mask=real, other=0.0)
    count = tl.load(sums + row * 9 + 7, mask=real, other=0.0)
    count_2 = tl.load(sums + row * 9 + 8, mask=real, other=0.0)
    own = 1.0 / tl.sum(tl.where(labelled, count + count_2, 0.0))
    whole, along, against = quotient(
        tl.sum(tl.where(labelled, overlap, 0.0)), tl.sum(tl.where(labelled, squares + count, 0.0)), SHARP
    )
    whole_2, along_2, against_2 = quotient(
        tl.sum(tl.where(labelled, overlap_2, 0.0)), tl.sum(tl.where(labelled, squares_2 + count_2, 0.0)), SHARP
    )
    supervised = tl.sum(tl.where(labelled, entropy, 0.0)) * own + 1.0 - (whole + whole_2) / 2.0
    agreement = tl.sum(tl.where(strong, entropy, 0.0)) / voxels
    guessed = row % 2 == 1
    certain = 1.0 / (tl.sum(tl.where(mixed & (guessed == 0), count + count_2, 0.0)) + 1e-16)
    uncertain = 1.0 / (tl.sum(tl.where(mixed & guessed, count + count_2, 0.0)) + 1e-16)
    weight = tl.where(mixed, tl.where(guessed, PSEUDO / 2.0, 0.5), 0.0)
    surprise = weight * tl.where(guessed, uncertain, certain)
    part, part_along, part_against = quotient(overlap, mass + count, SMOOTH)
    part_2, part_along_2, part_against_2 = quotient(overlap_2, mass_2 + count_2, SMOOTH)
    each = weight / (2.0 * crops)
    mixture = tl.sum(surprise * entropy) + (1.0 + PSEUDO) / 2.0 - tl.sum(each * (part + part_2))
    accepted = tl.sum(tl.where(strong, count + count_2, 0.0)) / voxels
    tl.store(losses, supervised + (consistency * agreement + mix * mixture))
    tl.store(losses + 1, supervised)
    tl.store(losses + 2, agreement)
    tl.store(losses + 3, mixture)
    tl.store(losses + 4, accepted)
    each = mix * each
    to = slopes + row * 7
    tl.store(to, tl.where(labelled, own, tl.where(strong, consistency / voxels, mix * surprise)), mask=real)
    tl.store(to + 1, tl.where(labelled, along / -2.0, -each * part_along), mask=real)
    tl.store(to + 2, tl.where(labelled, along_2 / -2.0, -each * part_along_2), mask=real)
    tl.store(to + 3, tl.where(labelled, 0.0, -each * part_against), mask=real)
    tl.store(to + 4, tl.where(labelled, 0.0, -each * part_against_2), mask=real)
    tl.store(to + 5, tl.where(labelled, against / -2.0, 0.0), mask=real)
    tl.store(to + 6, tl.where(labelled, against_2 / -2.0, 0.0), mask=real)
