"""Parts of methods with a teacher: the moving average of a network, the noise it sees, and ramps of loss weights."""

from typing import cast

import torch
from torch import Tensor

from fheat.networks.average import MovingAverage
from fheat.networks.base import SegmentationNetwork
from fheat.system import processes

LARGEST_DECAY = 0.99
STRETCH_ITERATIONS = 150
"""Number of iterations that share one value of a ramped weight, in the published methods."""
RAMP_ITERATIONS = 40 * STRETCH_ITERATIONS
"""Number of iterations until a ramped weight is full, in the published methods."""


class Teacher(MovingAverage):
    """The moving average of a student. It runs in training mode, so its batch norms make their own statistics."""

    def __init__(self, student: SegmentationNetwork, largest: float = LARGEST_DECAY) -> None:
        super().__init__(student, largest)

    def forward(self, images: Tensor) -> Tensor:
        """Return the teacher's logits, (B, K, X, Y, Z)."""
        return cast(Tensor, self.network(images))


def noisy(images: Tensor, deviation: float) -> Tensor:
    """Add white noise of a standard deviation, cut at twice that. A deviation of 0 changes nothing."""
    group = processes.current()
    white = torch.randn(group.size * len(images), *images.shape[1:], dtype=images.dtype, device=images.device)
    return images + group.rows((deviation * white).clamp(-2 * deviation, 2 * deviation))


def ramp_factor(at: Tensor, length: float) -> Tensor:
    """Return exp(-5 (1 - at / length)^2), `at` cut to [0, length]: 0.0067 at 0, 0.287 halfway, 1 at the end."""
    rest = 1 - at.double().clamp(0, length) / length
    return torch.exp(-5 * rest.square()).float()


def ramped_weight(iteration: Tensor, iterations: int = RAMP_ITERATIONS) -> Tensor:
    """Return the factor of an unsupervised loss in an iteration, counted from 0, full after `iterations`.

    It is constant over stretches of 150 iterations, as published; ramps shorter than 40 stretches are smooth.
    """
    if iterations < RAMP_ITERATIONS:
        return ramp_factor(iteration, iterations)
    return ramp_factor(iteration // STRETCH_ITERATIONS, iterations / STRETCH_ITERATIONS)
