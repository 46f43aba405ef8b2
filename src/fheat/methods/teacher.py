"""Sigmoid ramp-up: how much an unsupervised loss counts while a network still knows little."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from fheat.networks.base import SegmentationNetwork

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


LARGEST_DECAY = 0.99


class MeanTeacher(nn.Module):
    """A copy of a network with a <- d a + (1 - d) b for its parameters a and those of the network, b.

    d = min(1 - 1 / (t + 1), 0.99) with t the iteration, counted from 0: the first update copies, the next ones average
    all so far. Buffers are not averaged; the teacher makes its own. It learns nothing: no parameter asks for a
    gradient. All of it is tensor code, so a captured graph can hold the update.
    """

    def __init__(self, student: SegmentationNetwork, largest: float = LARGEST_DECAY) -> None:
        super().__init__()
        self.network = deepcopy(student).requires_grad_(False)
        self.largest = largest

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
