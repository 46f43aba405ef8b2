"""The common part of methods that train two networks side by side and let them learn from each other.

The first network is that of the run: it is validated and saved. The second one has its own random weights, belongs to
the method, and is saved in checkpoints only.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Task
from fheat.methods.losses import linear_foreground_dice
from fheat.methods.teacher import RAMP_ITERATIONS, ramped_weight
from fheat.networks.base import Features, SegmentationNetwork
from fheat.ops.voxel_sums import voxel_sums
from fheat.system.settings import Short

Pair = tuple[Features, Features]


class TwoNetworksSettings(MethodSettings):
    """Settings of methods with two networks."""

    supervision: NonNegativeFloat = 0.5
    """Weight of the Dice losses of both networks on labelled crops."""
    ramp: Annotated[PositiveInt, Short("ramp")] = RAMP_ITERATIONS
    """Number of iterations until the terms on unlabelled crops have their full weight."""


class TwoNetworks(Method):
    """Holds the second network and counts the iterations; a method derived from it combines the predictions of both."""

    steps: Tensor
    second: SegmentationNetwork

    def __init__(self, settings: TwoNetworksSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.common = settings
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make the second network, with random weights of its own."""
        self.second = build()

    def see(self, model: SegmentationNetwork, batch: Batch) -> Pair:
        """Return what both networks make of the labelled crops followed by the unlabelled ones."""
        images = torch.cat([batch.images, batch.unlabelled])
        return model.forward_features(images), self.second.forward_features(images)

    def supervised(self, pair: Pair, labels: Tensor) -> Tensor:
        """Return `supervision` times the sum of both linear Dice losses on the labelled crops."""
        sums = (voxel_sums(seen.logits[: len(labels)], labels) for seen in pair)
        first, second = (linear_foreground_dice(one) for one in sums)
        return self.common.supervision * (first + second)

    def next_ramp(self) -> Tensor:
        """Return the ramp of this iteration, from 0.0067 to 1, and count the iteration."""
        ramp = ramped_weight(self.steps, self.common.ramp)
        self.steps += 1
        return ramp
