"""Sigmoid ramp-up: how much an unsupervised loss counts while a network still knows little."""

import torch
from torch import Tensor

EVERY = 150
"""Iterations that share one value of a weight, in the published methods."""
LENGTH = 40
"""Such stretches until a weight is full."""


def sigmoid_ramp(at: Tensor, length: float) -> Tensor:
    """Return exp(-5 (1 - at / length)^2), `at` cut to [0, length]: 0.0067 at 0, 0.287 halfway, 1 at the end."""
    rest = 1 - at.double().clamp(0, length) / length
    return torch.exp(-5 * rest.square()).float()


def ramped_weight(iteration: Tensor, length: int = LENGTH) -> Tensor:
    """Return the factor of an unsupervised loss in an iteration, counted from 0: constant over `EVERY` iterations."""
    return sigmoid_ramp(iteration // EVERY, length)
