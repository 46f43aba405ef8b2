"""Supervised training: cross-entropy and Dice on labelled crops, for exclusive classes or nested regions.

It is the common baseline, without a paper or a source repository of its own, and so without a licence; nnU-Net (Isensee
et al., Nature Methods 2021), for instance, trains by the sum of the same two losses. The form of the Dice loss, with
squares in its denominator, is that of the fully supervised run of CUHK-AIM-Group/Light-UNETR (MIT), from its facts.
Deliberate difference from that run: its batch is 1, here it is the batch of the run.
"""

from functools import reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Regions
from fheat.methods.losses import squared_dice_loss, supervised_loss
from fheat.networks.base import SegmentationNetwork


class SupervisedSettings(MethodSettings):
    """Settings of supervised training: cross-entropy and Dice on labelled crops."""

    name: str = "supervised"


class Supervised(Method):
    """CE + Dice of labelled crops, without augmentation.

    Where the task has regions (whole tumour, tumour core, enhancing tumour), each output channel is one of them, and
    the loss is binary cross-entropy and Dice of its sigmoid.
    """

    title = "cross-entropy and Dice on labelled scans only"
    Settings = SupervisedSettings
    names: ClassVar = ("total", "ce", "dice")
    takes_regions = True

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, `ce` and `dice`."""
        logits = model(batch.images)
        if self.task.regions:
            ce, dice = region_loss(logits.float(), region_targets(batch.labels, self.task.regions))
        else:
            ce, dice = supervised_loss(logits, batch.labels)
        return {"total": ce + dice, "ce": ce, "dice": dice}


def region_loss(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return binary cross-entropy, mean over voxels and channels, and squared Dice loss of regions that may overlap.

    Shapes: logits and target (B, R, X, Y, Z).
    """
    p, axes = logits.sigmoid(), (0, 2, 3, 4)
    overlap, total = (p * target).sum(dim=axes), (p.square() + target.square()).sum(dim=axes)
    return F.binary_cross_entropy_with_logits(logits, target), squared_dice_loss(overlap, total)


def region_targets(labels: Tensor, regions: Regions) -> Tensor:
    """Return (B, R, X, Y, Z) float32: one where the label is among the region's values."""
    inside = [reduce(torch.logical_or, (labels == value for value in values)) for values in regions]
    return torch.stack(inside, dim=1).float()
