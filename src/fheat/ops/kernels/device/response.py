"""Kernels of the multiplier of a gate, exp(-(D r)^alpha) with alpha = 0.3 + 0.6 sigmoid(theta) and D = relu(delta)."""

import triton
import triton.language as tl

from fheat.ops.kernels.device.tiles import sigmoid


@triton.jit
def multiply_modes(
    theta, delta, log_radius, multiplier, closed, modes, largest,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the multiplier of all modes, of which the first is the mean, and the flag "closed" (D = 0).

    `largest` is the largest logarithm of an exponent. NaN in a parameter arrives in the multiplier.
    """
    mode = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    strength = tl.load(delta)
    is_closed = strength <= 0
    alpha = 0.3 + 0.6 * sigmoid(tl.load(theta))
    log_strength = tl.log(tl.where(is_closed, 1.0, strength))
    exponent = alpha * (log_strength + tl.load(log_radius + mode, mask=mode < modes, other=0.0))
    exponent = tl.where(exponent > largest, largest, exponent)
    value = tl.where(is_closed, 1.0, tl.where(mode == 0, 1.0, tl.exp(-tl.exp(exponent))))
    tl.store(multiplier + mode, value, mask=mode < modes)
    if tl.program_id(0) == 0:
        tl.store(closed, is_closed)


@triton.jit
def multiply_modes_backward(
    gradient, multiplier, theta, delta, log_radius, theta_gradient, delta_gradient, modes, largest,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dL/dtheta and dL/ddelta from dL/dm of all modes; both are exactly zero where the gate is closed.

    With e = alpha (log D + log r) below its limit, dm/de = -exp(e) m. One program adds up all modes.
    """
    strength = tl.load(delta)
    is_closed = strength <= 0
    share = sigmoid(tl.load(theta))
    alpha = 0.3 + 0.6 * share
    log_strength = tl.log(tl.where(is_closed, 1.0, strength))
    by_order = tl.zeros([BLOCK], tl.float32)
    by_strength = tl.zeros([BLOCK], tl.float32)
    for start in range(0, modes, BLOCK):
        mode = start + tl.arange(0, BLOCK)
        log_product = log_strength + tl.load(log_radius + mode, mask=mode < modes, other=0.0)
        exponent = alpha * log_product
        learned = (mode > 0) & (mode < modes) & (exponent <= largest)
        slope = -tl.exp(tl.where(learned, exponent, 0.0)) * tl.load(multiplier + mode, mask=mode < modes, other=0.0)
        slope = tl.where(learned, slope * tl.load(gradient + mode, mask=mode < modes, other=0.0), 0.0)
        by_order += slope * log_product
        by_strength += slope
    order_gradient = tl.sum(by_order) * 0.6 * share * (1.0 - share)
    strength_gradient = tl.sum(by_strength) * alpha / tl.where(is_closed, 1.0, strength)
    tl.store(theta_gradient, tl.where(is_closed, 0.0, order_gradient))
    tl.store(delta_gradient, tl.where(is_closed, 0.0, strength_gradient))
