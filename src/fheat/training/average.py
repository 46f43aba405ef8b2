"""The moving average of a network's weights, which is often better than the network after any one update."""

import torch
from torch import Tensor, nn

from fheat.methods.teacher import Teacher
from fheat.ops.gates import gates_of


class WeightAverage(Teacher):
    """A copy of a network with a <- d a + (1 - d) b for its weights a and those of the network, b, after each update.

    d = min(1 - 1 / (t + 1), share) as in `Teacher`. The scalars of gates and all buffers are not averaged but taken
    over: a gate that training has closed is closed here too, from the same iteration on, and can be retired. With a
    share of 0 the copy equals the network.
    """

    @torch.no_grad()
    def follow(self, student: nn.Module, iteration: Tensor) -> None:
        """Move towards the network; called after each of its updates."""
        super().follow(student, iteration)
        taken_over = _kept_as_they_are(self.network), _kept_as_they_are(student)
        for own, new in zip(*taken_over, strict=True):
            own.copy_(new)


def _kept_as_they_are(network: nn.Module) -> list[Tensor]:
    gates = [parameter for gate in gates_of(network).values() for parameter in gate.parameters()]
    return [*gates, *network.buffers()]
