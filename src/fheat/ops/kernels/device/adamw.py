"""Kernel of AdamW on one vector of all parameters."""

import triton
import triton.language as tl


@triton.jit
def bias_correction(steps, LOG: tl.constexpr):
    """Return 1 - b^n for LOG = log b, by a series where b^n is near 1 and a difference would cancel."""
    x = steps * LOG
    series = x * (
        1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0)))))
    )
    return tl.where(x > -0.25, -series, 1.0 - tl.exp(x))


@triton.jit
def update_all(
    values, gradients, means, squares, owner, rates, steps, factor, norm, items, clip,
    DECAY: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, FIRST_LOG: tl.constexpr, SECOND_LOG: tl.constexpr,
    EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update BLOCK values in place, see `fheat.ops.kernels.adamw.update_all`; without a finite norm nothing changes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < items
    length = tl.load(norm)
    finite = tl.abs(length) < float("inf")
    longer = tl.maximum(tl.where(finite, length, 0.0) / clip, 1.0)
    whose = tl.load(owner + at, mask=real, other=0)
    rate = tl.load(rates + whose, mask=real, other=0.0) * tl.load(factor)
    count = tl.load(steps + whose, mask=real, other=0.0) + 1.0
    value = tl.load(values + at, mask=real, other=0.0)
    mean = tl.load(means + at, mask=real, other=0.0)
    square = tl.load(squares + at, mask=real, other=0.0)
    gradient = tl.where(finite, tl.load(gradients + at, mask=real, other=0.0) / longer, 0.0)
    mean_now = FIRST * mean + (1.0 - FIRST) * gradient
    square_now = SECOND * square + (1.0 - SECOND) * gradient * gradient
    scale = tl.sqrt(square_now) / tl.sqrt(bias_correction(count, SECOND_LOG)) + EPSILON
    moved = value - rate * DECAY * value
    moved -= rate / bias_correction(count, FIRST_LOG) * mean_now / scale
    tl.store(values + at, tl.where(finite, moved, value), mask=real)
    tl.store(means + at, tl.where(finite, mean_now, mean), mask=real)
    tl.store(squares + at, tl.where(finite, square_now, square), mask=real)
