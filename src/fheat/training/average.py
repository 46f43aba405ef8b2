"""The moving average of the weights of a run, which is validated and saved where the settings ask for it."""

import torch
from torch import Tensor, nn

from fheat.networks.average import MovingAverage
from fheat.ops.gates import gates_of


class WeightAverage(MovingAverage):
    """A moving average of the weights in which the scalars of gates and all buffers are not averaged but taken over.

    A gate that training has closed is closed here too, from the same iteration on, and can be retired. With a share of
    0 the copy equals the network.
    """

    @torch.no_grad()
    def follow(self, network: nn.Module, iteration: Tensor) -> None:
        """Move towards the network; called after each of its updates."""
        super().follow(network, iteration)
        taken_over = _kept_as_they_are(self.network), _kept_as_they_are(network)
        for own, new in zip(*taken_over, strict=True):
            own.copy_(new)


def _kept_as_they_are(network: nn.Module) -> list[Tensor]:
    gates = [parameter for gate in gates_of(network).values() for parameter in gate.parameters()]
    return [*gates, *network.buffers()]
