"""Supervised training: cross-entropy and Dice on labelled crops."""

from functools import reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.methods.base import Batch, Method
from fheat.methods.losses import squared_dice_loss, supervised_loss
from fheat.networks.base import SegmentationNetwork
from fheat.system.processes import ALONE, Group


class Supervised(Method):
    """CE + Dice of the labelled scans, weak view only (random crop).

    Args:
        labelled: scans per step.
        regions: for each output channel the label values inside it, where channels are nested regions (whole tumour,
            tumour core, enhancing tumour) instead of exclusive classes; then sigmoid and binary cross-entropy.
        group: the processes that share a batch.

    Difference from the released code: its batch of the fully supervised run is 1; here as many as asked for.
    """

    names: ClassVar = ("total", "ce", "dice")
    unlabelled = 0

    def __init__(self, *, labelled: int = 2, regions: tuple[tuple[int, ...], ...] = (), group: Group = ALONE) -> None:
        super().__init__()
        self.labelled = labelled
        self.regions = regions
        self.group = group

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, `ce` and `dice`."""
        logits = model(batch.images)
        if self.regions:
            ce, dice = region_loss(logits.float(), region_targets(batch.labels, self.regions), self.group)
        else:
            ce, dice = supervised_loss(logits, batch.labels, self.group)
        return {"total": ce + dice, "ce": ce, "dice": dice}


def region_loss(logits: Tensor, target: Tensor, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy, mean over voxels and channels, and squared Dice loss of regions that may overlap.

    Shapes: logits and target (B, R, X, Y, Z).
    """
    p, axes = logits.sigmoid(), (0, 2, 3, 4)
    overlap, total = (p * target).sum(dim=axes), (p.square() + target.square()).sum(dim=axes)
    return F.binary_cross_entropy_with_logits(logits, target), squared_dice_loss(overlap, total, group=group)


def region_targets(labels: Tensor, regions: tuple[tuple[int, ...], ...]) -> Tensor:
    """Return (B, R, X, Y, Z) float32: one where the label is among the region's values."""
    inside = [reduce(torch.logical_or, (labels == value for value in values)) for values in regions]
    return torch.stack(inside, dim=1).float()
