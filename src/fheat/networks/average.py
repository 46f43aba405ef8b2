"""The moving average of a network: a second copy whose weights follow those of the first."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from fheat.networks.base import SegmentationNetwork


class MovingAverage(nn.Module):
    """A copy of a network with a <- d a + (1 - d) b for its parameters a and those of the network, b.

    d = min(1 - 1 / (t + 1), largest) with t the iteration, counted from 0: the first update copies, the next ones
    average all so far. Buffers are not averaged. No parameter asks for a gradient. All of it is tensor code, so a
    captured graph can hold the update. With `largest` = 0 the parameters equal those of the network.
    """

    def __init__(self, network: SegmentationNetwork, largest: float) -> None:
        super().__init__()
        self.network = deepcopy(network).requires_grad_(False)
        self.largest = largest

    @torch.no_grad()
    def follow(self, network: nn.Module, iteration: Tensor) -> None:
        """Move towards the network; called after each of its updates."""
        own: list[Tensor] = list(self.network.parameters())
        new: list[Tensor] = list(network.parameters())
        # In another dtype than theirs, weights are updated one by one instead of by one kernel for all.
        decay = average_decay(iteration, self.largest).to(own[0].dtype)
        torch._foreach_mul_(own, decay)
        torch._foreach_add_(own, list(torch._foreach_mul(new, 1 - decay)))


def average_decay(iteration: Tensor, largest: float) -> Tensor:
    """Return min(1 - 1 / (t + 1), largest) in float64: 0, 1/2, 2/3, ..."""
    return (1 - 1 / (iteration.double() + 1)).clamp(max=largest)
