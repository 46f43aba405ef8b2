"""Supervised training: cross-entropy and Dice on labelled crops."""

from functools import reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.group import ALONE, Group
from fheat.methods.base import Batch, Method
from fheat.methods.losses import one_hot, squared_dice_loss
from fheat.models.base import SegmentationNetwork


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
        logits = model(batch.images).float()
        if self.regions:
            target = region_targets(batch.labels, self.regions)
            ce, probabilities = F.binary_cross_entropy_with_logits(logits, target), logits.sigmoid()
        else:
            target = one_hot(batch.labels, logits.shape[1])
            ce, probabilities = F.cross_entropy(logits, batch.labels), logits.softmax(dim=1)
        dice = squared_dice_loss(probabilities, target, group=self.group)
        return {"total": ce + dice, "ce": ce, "dice": dice}


def region_targets(labels: Tensor, regions: tuple[tuple[int, ...], ...]) -> Tensor:
    """Return (B, R, X, Y, Z) float32: one where the label is among the region's values."""
    inside = [reduce(torch.logical_or, (labels == value for value in values)) for values in regions]
    return torch.stack(inside, dim=1).float()
