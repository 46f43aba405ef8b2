"""CPS, cross pseudo supervision: two networks that begin differently, each taught by the labels the other one gives.

Paper: Chen et al., CVPR 2021; code charlesCXK/TorchSemiSeg (MIT), from its facts. Deliberate differences: 3D crops; a
ramp of the weight, as other methods here have it, since two networks that know nothing yet would teach each other that
(a ramp of 1 iteration is as published); CE + Dice on labelled crops instead of CE; optimiser and schedule of the run,
the same for both networks; the published variant with CutMix is left out. The first network is the one that is
validated and saved.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.losses import supervised_loss
from fheat.methods.teacher import RAMP_ITERATIONS, ramped_weight
from fheat.networks.base import SegmentationNetwork
from fheat.ops.voxel_sums import voxel_sums
from fheat.system.settings import Short


class CPSSettings(MethodSettings):
    """Settings of cross pseudo supervision."""

    name: str = "cps"
    cross: NonNegativeFloat = 1.5
    """Weight of what the networks teach each other, after the ramp."""
    ramp: Annotated[PositiveInt, Short("ramp")] = RAMP_ITERATIONS
    """Number of iterations until that has its full weight."""


class CPS(Method):
    """L = (CE + Dice) of both networks on labelled crops + w (CE(p_1, y_2) + CE(p_2, y_1)) on all crops.

    y_i is the most likely class of network i, a constant; w = cross r(t), the sigmoid ramp of `ramp_factor`. With a
    weight of 0 these are two supervised trainings beside each other.
    """

    title = "cross pseudo supervision (Chen et al., CVPR 2021)"
    Settings = CPSSettings
    needs = Needs(unlabelled=True, second_network=True)
    names: ClassVar[tuple[str, ...]] = ("total", "supervised", "cross", "weight", "agreement")
    passes = (4, 0)
    steps: Tensor
    second: SegmentationNetwork

    def __init__(self, settings: CPSSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Build the second network, whose fresh weights differ from those of the first."""
        self.second = build()

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its two terms, the weight of the second, and the share of voxels on which both agree."""
        crops = torch.cat([batch.images, batch.unlabelled])
        logits = model(crops), self.second(crops)
        labels = [some.detach().argmax(dim=1).to(torch.uint8) for some in logits]
        known = [supervised_loss(some[: len(batch.images)], batch.labels) for some in logits]
        supervised = torch.stack([ce + dice for ce, dice in known]).sum()
        pairs = zip(logits, reversed(labels), strict=True)
        entropy = torch.stack([voxel_sums(some, taught).entropy.sum() for some, taught in pairs]).sum()
        cross = entropy / labels[0].numel()
        weight = self.options.cross * ramped_weight(self.steps, self.options.ramp)
        self.steps += 1
        return {
            "total": supervised + weight * cross,
            "supervised": supervised,
            "cross": cross,
            "weight": weight,
            "agreement": (labels[0] == labels[1]).float().mean(),
        }
