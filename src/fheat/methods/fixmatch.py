"""FixMatch: what a network is sure of on a weak view is the label of a strong view.

Paper: Sohn et al., NeurIPS 2020, for the classification of images; code google-research/fixmatch (Apache 2.0), from its
facts. Deliberate differences: every voxel is decided by itself; the strong view has another gamma, noise and dimmed
blocks, as CSE has them, instead of RandAugment, because labels stay in place under these; the weak view is the crop,
changed as `data.augment` says, like the strong one; CE + Dice on labelled crops instead of CE; as many unlabelled crops
as labelled ones (the original: seven times as many); optimiser and schedule of the run, and no average of the weights
unless the run asks for one.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.losses import supervised_terms
from fheat.methods.views import gamma, noise, soft_mask
from fheat.networks.base import SegmentationNetwork
from fheat.ops.voxel_sums import NOWHERE, voxel_sums


class FixMatchSettings(MethodSettings):
    """Settings of FixMatch."""

    name: str = "fixmatch"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Probability of the most likely class from which on a voxel of the weak view has a pseudo-label."""
    consistency: NonNegativeFloat = 1.0
    """Weight of the loss on the strong view."""


class FixMatch(Method):
    """L = CE + Dice on labelled crops + consistency sum 1[c >= threshold] CE(p_strong, y) / voxels on unlabelled ones.

    y is the most likely class of the weak view and c its probability, both constants of the same network; voxels
    without a pseudo-label stay in the denominator. With a weight of 0 this is supervised training.
    """

    title = "FixMatch, voxel by voxel (Sohn et al., NeurIPS 2020)"
    Settings = FixMatchSettings
    needs = Needs(unlabelled=True)
    names: ClassVar[tuple[str, ...]] = ("total", "supervised", "consistency", "accepted")
    passes = (2, 1)

    def __init__(self, settings: FixMatchSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its two terms, and the share of voxels whose pseudo-label is `accepted`."""
        with torch.no_grad():
            confidence, label = model(batch.unlabelled).float().softmax(dim=1).max(dim=1)
            strong = soft_mask(noise(gamma(batch.unlabelled, batch.low, batch.high)))
        logits = model(torch.cat([batch.images, strong]))
        rejected = NOWHERE * (confidence < self.options.threshold).to(torch.uint8)
        targets = torch.cat([batch.labels.to(torch.uint8), label.to(torch.uint8)])
        regions = torch.cat([torch.zeros_like(batch.labels, dtype=torch.uint8), rejected])
        sums = voxel_sums(logits, targets, regions)
        labelled, unlabelled = sums.split([len(batch.images), len(strong)])
        supervised = torch.stack(supervised_terms(labelled)).sum()
        consistency = unlabelled.entropy.sum() / label.numel()
        total = supervised + self.options.consistency * consistency
        accepted = unlabelled.voxels.sum() / label.numel()
        return {"total": total, "supervised": supervised, "consistency": consistency, "accepted": accepted}
