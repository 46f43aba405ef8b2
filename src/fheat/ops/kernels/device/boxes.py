"""Kernels that draw the box of CSE: the attention in each of 27 boxes, and the choice of one by given numbers."""

import triton
import triton.language as tl


@triton.jit
def score_boxes(
    attention, x_weights, y_weights, z_weights, scores, samples, X, Y, Z, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the attention (samples, X, Y, Z) in the box of this program, with weights (3, X), (3, Y) and (3, Z)."""
    box, cells = tl.program_id(0), X * Y * Z
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cells, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        real = cell < cells
        weight = tl.load(x_weights + box // 9 * X + cell // (Y * Z), mask=real, other=0.0)
        weight *= tl.load(y_weights + box // 3 % 3 * Y + cell // Z % Y, mask=real, other=0.0)
        weight *= tl.load(z_weights + box % 3 * Z + cell % Z, mask=real, other=0.0)
        for sample in range(samples):
            total += weight * tl.load(attention + sample * cells + cell, mask=real, other=0.0).to(tl.float32)
    tl.store(scores + box, tl.sum(total))


@triton.jit
def choose_box(scores, waits, choice, BLOCK: tl.constexpr):
    """Store the number of the box with the largest chance divided by its wait; see `fheat.ops.kernels.boxes`."""
    box = tl.arange(0, BLOCK)
    real = box < 27
    score = tl.load(scores + box, mask=real, other=0.0)
    low = tl.min(tl.where(real, score, float("inf")))
    high = tl.max(tl.where(real, score, float("-inf")))
    share = tl.where(high > low, (score - low) / tl.maximum(high - low, 1e-30), 0.0)
    power = tl.where(real, tl.exp(share - tl.max(tl.where(real, share, float("-inf")))), 0.0)
    first = tl.where(real, power / tl.sum(power) / tl.load(waits + box, mask=real, other=1.0), -1.0)
    tl.store(choice, tl.min(tl.where(first == tl.max(first), box, BLOCK)).to(tl.int64))
