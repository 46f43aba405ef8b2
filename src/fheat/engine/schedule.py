"""The learning rate over the iterations: linear warm-up, then half a cosine to zero."""

import math

import torch
from torch import Tensor


def rate_factor(iteration: Tensor, *, iterations: int, warm_up: int) -> Tensor:
    """Return what the base rate is multiplied with in an iteration, counted from 0, as a tensor on its device.

    (n + 1) / warm_up in the warm-up, then (1 + cos(pi (n - warm_up) / (iterations - warm_up))) / 2.
    """
    n = iteration.double()
    rising = (n + 1) / max(warm_up, 1)
    falling = (1 + torch.cos(math.pi * (n - warm_up) / max(iterations - warm_up, 1))) / 2
    return torch.where(n < warm_up, rising, falling.clamp(min=0)).float()


def released_rate(iteration: int, *, base: float = 0.01, iterations: int = 15_000, warm_up: int = 500) -> float:
    """Return the rate of the released CSE code, which is written after each step: 0.01, 2e-5, 4e-5, ...

    Its first step therefore takes the full rate; kept as a record, the loop uses `rate_factor`.
    """
    if iteration == 0:
        return base
    if iteration < warm_up:
        return base * iteration / warm_up
    return base * (1 + math.cos(math.pi * (iteration - warm_up) / (iterations - warm_up))) / 2
