"""UA-MT's uncertainty: entropy of a mean prediction, and which voxels are certain enough to learn from."""

import math

import torch
from torch import Tensor

from fheat.methods.teacher import sigmoid_ramp

FIRST = 0.75
"""Share of the largest entropy that is let through at the start, the ramp's own start aside."""


def entropy(probabilities: Tensor) -> Tensor:
    """Return -sum over classes of p log(p + 1e-6): (B, K, X, Y, Z) to (B, X, Y, Z), 0 where sure, ln K at most."""
    return -(probabilities * torch.log(probabilities + 1e-6)).sum(dim=1)


def uncertainty_threshold(iteration: Tensor, iterations: int, classes: int = 2) -> Tensor:
    """Return (0.75 + 0.25 r(t, iterations)) ln K: voxels below it count. 0.5210 at first and ln 2 at the end, K = 2.

    The ramp r is over iterations here, not over stretches of 150.
    """
    return (FIRST + (1 - FIRST) * sigmoid_ramp(iteration, iterations)) * math.log(classes)
