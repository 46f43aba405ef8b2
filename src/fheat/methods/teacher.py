"""Parts of methods with a teacher: the moving average of a network, the noise it sees, and ramps of loss weights."""

from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from fheat.networks.base import SegmentationNetwork
from fheat.system import processes

LARGEST_DECAY = 0.99
STRETCH_ITERATIONS = 150
"""Number of iterations that share one value of a ramped weight, in the published methods."""
RAMP_ITERATIONS = 40 * STRETCH_ITERATIONS
"""Number of iterations until a ramped weight is full, in the published methods."""


class Teacher(nn.Module):
    """A copy of a network with a <- d a + (1 - d) b for its parameters a and those of the network, b.

    d = min(1 - 1 / (t + 1), largest) with t the iteration, counted from 0: the first update copies, the next ones
    average all so far. Buffers are not averaged: the teacher runs in training mode and makes its own. No parameter asks
    for a gradient. All of it is tensor code, so a captured graph can hold the update.
    """

    def __init__(self, student: SegmentationNetwork, largest: float = LARGEST_DECAY) -> None:
        super().__init__()
        self.network = deepcopy(student).requires_grad_(False)
        self.largest = largest

    def forward(self, images: Tensor) -> Tensor:
        """Return the teacher's logits, (B, K, X, Y, Z)."""
        return cast(Tensor, self.network(images))

    @torch.no_grad()
    def follow(self, student: nn.Module, iteration: Tensor) -> None:
        """Move towards the student; called after each of its updates."""
        decay = teacher_decay(iteration, self.largest)
        own: list[Tensor] = list(self.network.parameters())
        new: list[Tensor] = list(student.parameters())
        torch._foreach_mul_(own, decay)
        torch._foreach_add_(own, list(torch._foreach_mul(new, 1 - decay)))


def teacher_decay(iteration: Tensor, largest: float = LARGEST_DECAY) -> Tensor:
    """Return min(1 - 1 / (t + 1), largest): 0, 1/2, 2/3, ..."""
    return (1 - 1 / (iteration.double() + 1)).clamp(max=largest).float()


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
