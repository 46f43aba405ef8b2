"""Kernels of the 3x3x3 depthwise convolution on large grids: each thread sweeps along the first axis by itself.

A thread owns two channels of a run of RUN voxels along the last axis, which RUN divides, and `run` planes. It reads the
three lines of RUN + 2 voxels of each plane once, and every value serves the three taps along the first and the three
along the last axis: 3 (RUN + 2) / RUN reads of a voxel where `depthwise.convolve` has 27. A program has HIGH successive
lines by BLOCK channels. Tensors are (samples, X, Y, Z, C), and C is even. The grid of programs is (columns and
channels, runs, samples).
"""

import triton
import triton.language as tl

from fheat.ops.kernels.device.depthwise import read_run


@triton.jit
def runs_at(part, Z, C: tl.constexpr, HIGH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr):
    """Return row j, (HIGH BLOCK / 2, 1), the first k, (1, 1), the two channels of each thread, (HIGH BLOCK / 2, 2), and
    the offsets within a plane."""
    chunks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    pairs: tl.constexpr = BLOCK // 2
    column, across = part // chunks, Z // RUN
    thread = tl.arange(0, HIGH * pairs)[:, None]
    j = column // across * HIGH + thread // pairs
    k = column % across * RUN + tl.arange(0, 1)[:, None]
    channel = part % chunks * BLOCK + thread % pairs * 2 + tl.arange(0, 2)[None, :]
    return j, k, channel, (j * Z + k) * C + channel


@triton.jit(do_not_specialize=["X", "Y", "Z", "run"])
def sweep_runs(
    x, table, add, out, X, Y, Z, run,
    C: tl.constexpr, HIGH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr, FLIP: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """Compute out = depthwise(x) + add, with zeros outside the grid, as `depthwise.convolve` does.

    Three runs wait for their planes: `behind`, `middle` and `ahead` are the outputs of the planes before, at and after
    the one that is read. They start from what is added, read together with the planes: at the end, each read would wait
    for the store before it, which might have changed it.
    """
    first, sample = tl.program_id(1) * run, tl.program_id(2)
    j, k, channel, place = runs_at(tl.program_id(0), Z, C, HIGH, RUN, BLOCK)
    keep = (j < Y) & (channel < C)
    weights = ()
    for tap in tl.static_range(27):
        weights += (tl.load(table + (26 - tap if FLIP else tap) * C + channel, mask=channel < C, other=0.0),)
    zero = tl.zeros([HIGH * BLOCK // 2, 2], tl.float32)
    start = zero
    if BIAS:
        start += tl.load(add + channel, mask=channel < C, other=0.0)
    behind, middle = (), ()
    for _ in tl.static_range(RUN):
        behind += (zero,)
        middle += (zero,)
    size = Y * Z * C
    end = tl.minimum(first + run, X)
    for plane in range(first - 1, end + 1):
        i = plane + tl.arange(0, 1)[:, None]
        within = keep & (i >= 0) & (i < X)
        there = (sample * X + plane) * size + place
        ahead = ()
        for step in tl.static_range(RUN):
            if BIAS:
                ahead += (start,)
            else:
                ahead += (tl.load(add + there + size + step * C, mask=keep & (i + 1 < end), other=0.0),)
        for dj in tl.static_range(3):
            beside = within & (j + dj > 0) & (j + dj <= Y)
            values = read_run(x + there + (dj - 1) * Z * C, beside, k, Z, C, RUN)
            for tap in tl.static_range(3):
                after, at, before = (), (), ()
                for step in tl.static_range(RUN):
                    after += (ahead[step] + values[step + tap] * weights[dj * 3 + tap],)
                    at += (middle[step] + values[step + tap] * weights[9 + dj * 3 + tap],)
                    before += (behind[step] + values[step + tap] * weights[18 + dj * 3 + tap],)
                ahead, middle, behind = after, at, before
        if plane > first:
            for step in tl.static_range(RUN):
                tl.store(out + there - size + step * C, behind[step], mask=keep)
        behind = middle
        middle = ahead


@triton.jit(do_not_specialize=["X", "Y", "Z", "run"])
def sweep_runs_weights(
    output_gradient, x, partial, X, Y, Z, run,
    C: tl.constexpr, HIGH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the weights (C, 27) and of the bias (C) as one row of `partial` per program.

    A thread keeps the gradients of three planes and meets each value of x with all of them. Its sums are added to those
    of the other lines of its program once, at the end.
    """
    chunks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    part, first, sample = tl.program_id(0), tl.program_id(1) * run, tl.program_id(2)
    j, k, channel, place = runs_at(part, Z, C, HIGH, RUN, BLOCK)
    keep = (j < Y) & (channel < C)
    size = Y * Z * C
    origin = output_gradient + sample * X * size + place
    i = first + tl.arange(0, 1)[:, None]
    behind, middle, sums = (), (), ()
    for step in tl.static_range(RUN):
        behind += (tl.load(origin + (first - 1) * size + step * C, mask=keep & (i > 0), other=0.0),)
        middle += (tl.load(origin + first * size + step * C, mask=keep, other=0.0),)
    for _ in tl.static_range(28):
        sums += (tl.zeros([HIGH * BLOCK // 2, 2], tl.float32),)
    for plane in range(first, tl.minimum(first + run, X)):
        i = plane + tl.arange(0, 1)[:, None]
        ahead, bias = (), sums[27]
        for step in tl.static_range(RUN):
            ahead += (tl.load(origin + (plane + 1) * size + step * C, mask=keep & (i + 1 < X), other=0.0),)
            bias += middle[step]
        there = x + (sample * X + plane) * size + place
        grown = ()
        for dj in tl.static_range(3):
            beside = keep & (j + dj > 0) & (j + dj <= Y)
            values = read_run(there + (dj - 1) * Z * C, beside, k, Z, C, RUN)
            for tap in tl.static_range(3):
                after, at, before = sums[dj * 9 + tap * 3], sums[dj * 9 + tap * 3 + 1], sums[dj * 9 + tap * 3 + 2]
                for step in tl.static_range(RUN):
                    after += ahead[step] * values[step + tap]
                    at += middle[step] * values[step + tap]
                    before += behind[step] * values[step + tap]
                grown += (after, at, before)
        grown += (bias,)
        sums = grown
        behind = middle
        middle = ahead
    columns = tl.cdiv(Y, HIGH) * (Z // RUN)
    row = partial + ((sample * tl.num_programs(1) + tl.program_id(1)) * columns + part // chunks) * 28 * C
    at = part % chunks * BLOCK + tl.arange(0, BLOCK)
    for tap in tl.static_range(27):
        total = tl.sum(tl.reshape(sums[tap], [HIGH, BLOCK]), axis=0)
        tl.store(row + at * 27 + tap % 3 * 9 + tap // 3, total, mask=at < C)
    tl.store(row + 27 * C + at, tl.sum(tl.reshape(sums[27], [HIGH, BLOCK]), axis=0), mask=at < C)
