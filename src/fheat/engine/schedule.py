"""The learning rate over the iterations: linear warm-up, then half a cosine to zero."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Spike(NamedTuple):
    """From iteration `at` on, counted from 0, the rate is `factor` times what it would be, for `length` iterations."""

    at: int
    length: int
    factor: float


NO_SPIKE = Spike(0, 0, 1.0)


def rate_factor(iteration: Tensor, *, iterations: int, warm_up: int, spike: Spike = NO_SPIKE) -> Tensor:
    """Return what the base rate is multiplied with in an iteration, counted from 0, as a tensor on its device.

    (n + 1) / warm_up in the warm-up, then (1 + cos(pi (n - warm_up) / (iterations - warm_up))) / 2; times the spike.
    """
    n = iteration.double()
    rising = (n + 1) / max(warm_up, 1)
    falling = (1 + torch.cos(math.pi * (n - warm_up) / max(iterations - warm_up, 1))) / 2
    factor = torch.where(n < warm_up, rising, falling.clamp(min=0))
    spiked = (n >= spike.at) & (n < spike.at + spike.length)
    return torch.where(spiked, spike.factor * factor, factor).float()


def released_rate(iteration: int, *, base: float = 0.01, iterations: int = 15_000, warm_up: int = 500) -> float:
    """Return the rate of the released CSE code, which is written after each step: 0.01, 2e-5, 4e-5, ...

    Its first step therefore takes the full rate; kept as a record, the loop uses `rate_factor`.
    """
    if iteration == 0:
        return base
    if iteration < warm_up:
        return base * iteration / warm_up
    return base * (1 + math.cos(math.pi * (iteration - warm_up) / (iterations - warm_up))) / 2
