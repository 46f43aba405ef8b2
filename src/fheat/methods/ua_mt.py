"""UA-MT, the uncertainty-aware mean teacher: consistency only where the teacher is certain.

Paper: Yu et al., MICCAI 2019; code yulequan/UA-MT (no licence stated), from its facts. Deliberate differences: any
number of classes (the original is written for two); all passes of the teacher are one batch (the original: one pass,
then four with two copies of the crops), over which its batch norms make their statistics; the teacher starts as a copy
of the network (its first update would make it one); optimiser and schedule are those of the run (the original: SGD,
6000 iterations), and the threshold's ramp lasts as long as the run.

No dropout is added to the network. The V-Net of the original drops half of the channels at the bottleneck and before
the head (Dropout3d); here the teacher's passes differ by the noise and by whatever dropout the network has itself, in
FHEAT-Seg and Light-UNETR 0.3 of the values at the bottleneck. Where a network has none, the uncertainty is that of the
noise alone.
"""

import math
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from fheat.methods.base import Batch, Task
from fheat.methods.losses import half_supervised_loss
from fheat.methods.mean_teacher import MeanTeacher, MeanTeacherSettings
from fheat.methods.probabilities import class_probabilities, entropy
from fheat.methods.teacher import noisy, ramp_factor, ramped_weight
from fheat.networks.base import SegmentationNetwork
from fheat.system import processes

FIRST_SHARE = 0.75
"""Share of the largest possible entropy that the threshold starts from."""


class UAMTSettings(MeanTeacherSettings):
    """Settings of the uncertainty-aware mean teacher."""

    name: str = "ua_mt"
    passes: PositiveInt = 8
    """Number of noisy passes of the teacher that the uncertainty is estimated from."""


class UAMT(MeanTeacher):
    """L = (CE + Dice) / 2 on labelled crops + w sum keep (p - p_teacher)^2 / (K sum keep) on unlabelled ones.

    keep = 1 where the entropy of the teacher's mean prediction over `passes` noisy passes is below
    (0.75 + 0.25 r(t, iterations)) ln K. With everything kept this is the mean teacher.
    """

    title = "uncertainty-aware mean teacher (Yu et al., MICCAI 2019)"
    Settings = UAMTSettings
    names: ClassVar[tuple[str, ...]] = ("total", "supervised", "consistency", "weight", "certain")
    passes = (2, 9)

    def __init__(self, settings: UAMTSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.estimates = settings.passes

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its two terms, the weight of the second, and the share of voxels that are certain."""
        group = processes.current()
        with torch.no_grad():
            target, mean = self._taught(batch.unlabelled)
            certain = entropy(mean) < uncertainty_threshold(self.steps, self.task.iterations, target.shape[1])
        labelled, unlabelled = model(torch.cat([batch.images, batch.unlabelled])).split(
            [len(batch.images), len(batch.unlabelled)]
        )
        supervised = half_supervised_loss(labelled, batch.labels)
        difference = (class_probabilities(unlabelled) - target).square().sum(dim=1)
        count = target.shape[1] * group.sum(certain.sum().float())
        consistency = group.sum((certain * difference).sum()) / (count + 1e-16)
        weight = self.options.consistency * ramped_weight(self.steps, self.options.ramp)
        self.steps += 1
        total = supervised + weight * consistency
        kept = certain.float().mean()
        return {"total": total, "supervised": supervised, "consistency": consistency, "weight": weight, "certain": kept}

    def _taught(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the teacher's prediction on noisy images, and the mean of its predictions on `passes` further ones.

        Copies of an image follow each other, so that the rows of a process are those that one process with all images
        has.
        """
        passes = 1 + self.estimates
        logits: Tensor = self.teacher(noisy(images.repeat_interleave(passes, dim=0), self.options.noise))
        p = class_probabilities(logits).view(len(images), passes, *logits.shape[1:])
        return p[:, 0], p[:, 1:].mean(dim=1)


def uncertainty_threshold(iteration: Tensor, iterations: int, classes: int = 2) -> Tensor:
    """Return (0.75 + 0.25 r(t, iterations)) ln K. Voxels below it count: 0.5210 at first and ln 2 at the end, K = 2.

    The ramp r is over iterations here, not over stretches of 150.
    """
    return (FIRST_SHARE + (1 - FIRST_SHARE) * ramp_factor(iteration, iterations)) * math.log(classes)
