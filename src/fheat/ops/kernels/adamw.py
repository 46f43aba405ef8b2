"""AdamW on one vector of all parameters, by one kernel. The plain twin is `torch.optim.AdamW`."""

import math
from typing import NamedTuple

from torch import Tensor

from fheat.ops.kernels.device import adamw as device

_BLOCK = 1024
"""Number of values that a program updates."""


class Vector(NamedTuple):
    """All parameters one after the other: their values, the moments of AdamW, and which parameter each value is of.

    values, means, squares: (N,) float32.
    owner: (N,) int32, below P.
    rates, steps: (P,) float32, the learning rate of each parameter and the number of its updates so far.
    """

    values: Tensor
    means: Tensor
    squares: Tensor
    owner: Tensor
    rates: Tensor
    steps: Tensor


def update_all(
    vector: Vector, gradients: Tensor, norm: Tensor, factor: Tensor, clip: float, decay: float,
    betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    """Update values and moments in place, not the steps: with r = rate * factor and g = gradient / max(norm / clip, 1)

        m = b0 m + (1 - b0) g,    s = b1 s + (1 - b1) g^2,    v = (1 - r decay) v
        v = v - r m / (1 - b0^n) / (sqrt(s / (1 - b1^n)) + epsilon)

    where n is the number of updates, this one included. Where the norm is not finite nothing changes.
    """  # fmt: skip
    logs = [math.log(beta) if beta else -1e4 for beta in betas]
    values, means, squares, owner, rates, steps = vector
    device.update_all[(-(-len(values) // _BLOCK),)](
        values, gradients, means, squares, owner, rates, steps, factor, norm, len(values), clip,
        decay, *betas, *logs, epsilon, BLOCK=_BLOCK,
    )  # fmt: skip
