"""Kernels of the losses: sums over voxels, their gradient, and pseudo-labels read from the logits of a weak view.

Logits are (samples, K, voxels), or (samples, voxels, K) with LAST; tiles are (KP, BLOCK), where KP is the next power of
two from K. Each program stores its own sums, and the host adds them in a fixed order, so results repeat bit by bit.
Sums of two classes in up to two regions are those of `fheat.ops.kernels.device.two_classes`.
"""

import triton
import triton.language as tl


@triton.jit
def logits_at(voxel, sample, voxels, kind, K: tl.constexpr, LAST: tl.constexpr):
    """Return the offsets of the logits of a tile, in 64 bits: a batch may hold more than 32 bits can count."""
    place = voxel[None, :] * K + kind[:, None] if LAST else kind[:, None] * voxels + voxel[None, :]
    return sample.to(tl.int64) * K * voxels + place


@triton.jit
def softmax(logits, place, rows, kind, K: tl.constexpr):
    """Return logits minus their maximum, (KP, voxels) with -inf in the padding, their softmax, and its numerators."""
    real = (kind < K)[:, None]
    values = tl.load(logits + place, mask=real & rows[None, :], other=0.0).to(tl.float32)
    values = tl.where(real, values, float("-inf"))
    values -= tl.max(values, axis=0)[None, :]
    powers = tl.exp(values)
    return values, powers / tl.sum(powers, axis=0)[None, :], powers


@triton.jit
def targets_at(target, region, at, rows, MASKED: tl.constexpr):
    """Return the class and the region of voxels; those beyond the last voxel get region 255, which is never summed."""
    number = tl.load(target + at, mask=rows, other=0).to(tl.int32)
    if MASKED:
        return number, tl.load(region + at, mask=rows, other=255).to(tl.int32)
    else:
        return number, tl.where(rows, 0, 255)


@triton.jit
def read_tile(
    logits, target, region, voxel, sample, voxels, kind, K: tl.constexpr, MASKED: tl.constexpr, LAST: tl.constexpr
):
    """Return validity and offsets of the logits of voxels, the results of `softmax`, and their classes and regions."""
    rows = voxel < voxels
    place = logits_at(voxel, sample, voxels, kind, K, LAST)
    values, p, powers = softmax(logits, place, rows, kind, K)
    number, where = targets_at(target, region, sample.to(tl.int64) * voxels + voxel, rows, MASKED)
    return rows, place, values, p, powers, number, where


@triton.jit
def store_sums(partial, sums, kind, own, first, K: tl.constexpr, R: tl.constexpr):
    """Store the sums (RP, KP) of a program: of the 4 K + 1 numbers of each region, the K from `first` on."""
    real = (own < R)[:, None] & (kind < K)[None, :]
    tl.store(partial + own[:, None] * (4 * K + 1) + first + kind[None, :], sums, mask=real)


@triton.jit
def sum_voxels(
    logits, target, region, partial, voxels, span,
    K: tl.constexpr, KP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    MASKED: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store each program's sums, (samples, programs, R, 4 K + 1): entropy, overlap, mass, squares, voxels."""
    sample, part = tl.program_id(0), tl.program_id(1)
    kind, own = tl.arange(0, KP), tl.arange(0, RP)
    entropy = tl.zeros([RP, BLOCK], tl.float32)
    overlap = tl.zeros([RP, KP, BLOCK], tl.float32)
    mass = tl.zeros([RP, KP, BLOCK], tl.float32)
    squares = tl.zeros([RP, KP, BLOCK], tl.float32)
    count = tl.zeros([RP, KP, BLOCK], tl.float32)
    for start in range(part * span, part * span + span, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        _, _, values, p, powers, number, where = read_tile(
            logits, target, region, voxel, sample, voxels, kind, K, MASKED, LAST
        )
        hit = number[None, :] == kind[:, None]
        surprise = tl.log(tl.sum(powers, axis=0)) - tl.sum(tl.where(hit, values, 0.0), axis=0)
        surprise = tl.where(number < K, surprise, float("nan"))  # a label that is no class must not pass unseen
        inside = where[None, :] == own[:, None]
        entropy += tl.where(inside, surprise[None, :], 0.0)
        inside = inside[:, None, :]
        both = inside & hit[None, :, :]
        overlap += tl.where(both, p[None, :, :], 0.0)
        mass += tl.where(inside, p[None, :, :], 0.0)
        squares += tl.where(inside, (p * p)[None, :, :], 0.0)
        count += tl.where(both, 1.0, 0.0)
    partial += (sample * tl.num_programs(1) + part) * R * (4 * K + 1)
    tl.store(partial + own * (4 * K + 1), tl.sum(entropy, axis=1), mask=own < R)
    store_sums(partial, tl.sum(overlap, axis=2), kind, own, 1, K, R)
    store_sums(partial, tl.sum(mass, axis=2), kind, own, 1 + K, K, R)
    store_sums(partial, tl.sum(squares, axis=2), kind, own, 1 + 2 * K, K, R)
    store_sums(partial, tl.sum(count, axis=2), kind, own, 1 + 3 * K, K, R)


@triton.jit
def sums_gradient(
    output_gradients, logits, target, region, out, voxels, span,
    K: tl.constexpr, KP: tl.constexpr, R: tl.constexpr, MASKED: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute out = dL/dlogits from the gradients E, A, B, C of entropy, overlap, mass and squares.

        dL/dlogits = E (p - g) + p (u - sum p u),    u = A g + B + 2 C p

    `output_gradients` is (samples, R, 3 K + 1); each voxel uses those of its region, and is 0 outside all regions.
    """
    sample, part = tl.program_id(0), tl.program_id(1)
    kind = tl.arange(0, KP)
    for start in range(part * span, part * span + span, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        rows, place, _, p, _, number, where = read_tile(
            logits, target, region, voxel, sample, voxels, kind, K, MASKED, LAST
        )
        g = tl.where(number[None, :] == kind[:, None], 1.0, 0.0)
        inside = where < R
        own = output_gradients + (sample * R + where) * (3 * K + 1)
        tile = own[None, :] + 1 + kind[:, None]
        keep = inside[None, :] & (kind < K)[:, None]
        entropy = tl.load(own, mask=inside, other=0.0)[None, :]
        overlap = tl.load(tile, mask=keep, other=0.0)
        mass = tl.load(tile + K, mask=keep, other=0.0)
        squares = tl.load(tile + 2 * K, mask=keep, other=0.0)
        u = overlap * g + mass + 2.0 * squares * p
        gradient = entropy * (p - g) + p * (u - tl.sum(p * u, axis=0)[None, :])
        tl.store(out + place, gradient, mask=(kind < K)[:, None] & rows[None, :])


@triton.jit
def first_largest(values, kind, KP: tl.constexpr):
    """Return the class with the largest value of (KP, voxels), the first one where several are equal."""
    largest = values == tl.max(values, axis=0)[None, :]
    return tl.min(tl.where(largest, kind[:, None], KP), axis=0)


@triton.jit
def read_blocks(
    logits, threshold, label, accepted, inside, foreground, confidence, X, Y, Z,
    K: tl.constexpr, KP: tl.constexpr, SIDE: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Read the pseudo-labels of one block of SIDE^3 voxels from logits, see `fheat.ops.kernels.losses.read_weak`."""
    sample, block = tl.program_id(0), tl.program_id(1)
    kind = tl.arange(0, KP)
    i = block // ((Y // SIDE) * (Z // SIDE)) * SIDE
    j = block // (Z // SIDE) % (Y // SIDE) * SIDE
    k = block % (Z // SIDE) * SIDE
    bar = tl.load(threshold + sample * tl.num_programs(1) + block)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIDE * SIDE * SIDE, BLOCK):
        step = start + tl.arange(0, BLOCK)
        voxel = ((i + step // (SIDE * SIDE)) * Y + j + step // SIDE % SIDE) * Z + k + step % SIDE
        place = logits_at(voxel, sample, X * Y * Z, kind, K, LAST)
        values, p, _ = softmax(logits, place, step >= 0, kind, K)
        sure = tl.max(p, axis=0)
        at = sample.to(tl.int64) * X * Y * Z + voxel
        behind = tl.sum(tl.where(kind[:, None] == 0, p, 0.0), axis=0)
        tl.store(label + at, first_largest(values, kind, KP))
        tl.store(accepted + at, sure >= bar)
        tl.store(inside + at, behind <= 0.5)
        tl.store(foreground + at, first_largest(tl.where(kind[:, None] > 0, values, float("-inf")), kind, KP))
        total += sure
    tl.store(confidence + sample * tl.num_programs(1) + block, tl.sum(total) / (SIDE * SIDE * SIDE))
