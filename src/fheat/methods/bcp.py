"""BCP, bidirectional copy-paste: labelled crops pasted into unlabelled ones and the other way round.

Paper: Bai et al., CVPR 2023; code DeepMed-Lab-ECNU/BCP (MIT), from its facts. Deliberate differences: the second stage
begins from the network at the end of the first one (the original: from the best on the test scans); the optimiser goes
on over both stages with the schedule of the run (the original: SGD, begun anew); one pass of the network over both
mixtures and one of the teacher over all unlabelled crops; any number of classes, each with its largest component, and
any patch; the teacher's share is min(1 - 1 / (t + 1), decay), which is the published constant after 99 iterations. The
batch is that of the run, by default two labelled and two unlabelled crops; the original has four and four on LA, which
`data.batch` 4 gives.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.boxes import random_box
from fheat.methods.losses import masked_dice_loss, mixture_loss
from fheat.methods.teacher import LARGEST_DECAY, Teacher
from fheat.networks.base import SegmentationNetwork
from fheat.ops.largest_component import largest_component
from fheat.ops.voxel_sums import VoxelSums, voxel_sums
from fheat.system.settings import Short


class BCPSettings(MethodSettings):
    """Settings of bidirectional copy-paste."""

    name: str = "bcp"
    pretraining: Annotated[NonNegativeFloat, Short("pretraining")] = 0.12
    """Length of the first stage, on labelled crops: below 1 a share of all iterations, else a number of them. Published
    are 2,000 before 15,000."""
    pseudo: NonNegativeFloat = 0.5
    """Weight of the voxels with pseudo-labels; those with labels have 1."""
    decay: NonNegativeFloat = LARGEST_DECAY
    """Largest share of its old weights that the teacher keeps in an update."""


class BCP(Method):
    """L = l(x_a M + u_a (1 - M)) + l(u_b M + x_b (1 - M)), M = 0 in a random box of two thirds of each side, else 1.

    x and u are labelled and unlabelled crops; a and b are those with even and with odd places in the batch, so that
    several processes make the pairs that one makes. l = (Dice + CE) / 2 where there are labels + `pseudo` times the
    same where the teacher gives pseudo-labels. In the first stage L = (Dice + CE) / 2 of x_a M + x_b (1 - M) with the
    labels of both.
    """

    title = "bidirectional copy-paste (Bai et al., CVPR 2023)"
    Settings = BCPSettings
    needs = Needs(unlabelled=True, teacher=True)
    names: ClassVar[tuple[str, ...]] = ("total", "inward", "outward")
    passes = (1, 1)
    smallest_batch = 2
    teacher: Teacher

    def __init__(self, settings: BCPSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options, self.first = settings, first_stage(settings.pretraining, task.iterations)

    @classmethod
    def check(cls, settings: MethodSettings, task: Task) -> None:
        """Raise `ValueError` where a batch has no halves, or the first stage leaves no iteration to the second."""
        if task.batch % 2:
            raise ValueError(
                f"data.batch: method bcp pastes one half into the other and needs 2, 4, ..., not {task.batch}"
            )
        if isinstance(settings, BCPSettings) and first_stage(settings.pretraining, task.iterations) >= task.iterations:
            raise ValueError(
                f"method.pretraining: {settings.pretraining:g} leaves none of {task.iterations} iterations"
            )

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make the teacher, which waits for the second stage."""
        self.teacher = Teacher(model, self.options.decay)

    def stage(self, iteration: int) -> int:
        """Return 0 in the pre-training and 1 afterwards."""
        return int(iteration >= self.first)

    def begin_stage(self, model: SegmentationNetwork, stage: int) -> None:
        """Let the teacher begin as a copy of the network, buffers included."""
        self.teacher.network.load_state_dict(model.state_dict())

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, and the losses of unlabelled pasted into labelled (`inward`) and the other way round
        (`outward`), which are 0 in the first stage.
        """
        outside = ~random_box(batch.images.shape[2:], batch.images.device)
        if self.current_stage == 0:
            return self._pretrain(model, batch, outside)
        with torch.no_grad():
            pseudo = pseudo_labels(self.teacher(batch.unlabelled))
        (x_a, x_b), (u_a, u_b) = halves(batch.images), halves(batch.unlabelled)
        (known_a, known_b), (pseudo_a, pseudo_b) = halves(batch.labels.to(torch.uint8)), halves(pseudo)
        logits = model(torch.cat([torch.where(outside, x_a, u_a), torch.where(outside, u_b, x_b)]))
        targets = torch.cat([torch.where(outside, known_a, pseudo_a), torch.where(outside, pseudo_b, known_b)])
        guessed = torch.cat([(~outside).expand_as(known_a), outside.expand_as(known_b)]).to(torch.uint8)
        sums = voxel_sums(logits, targets, guessed, 2)
        inward, outward = (mixture_loss(part, self.options.pseudo) for part in sums.split([len(x_a), len(x_b)]))
        return {"total": inward + outward, "inward": inward, "outward": outward}

    def after_update(self, model: SegmentationNetwork, iteration: Tensor) -> None:
        """Move the teacher towards the network, in the second stage."""
        if self.current_stage > 0:
            self.teacher.follow(model, iteration)

    def _pretrain(self, model: SegmentationNetwork, batch: Batch, outside: Tensor) -> dict[str, Tensor]:
        mixture, labels = (torch.where(outside, *halves(whole)) for whole in (batch.images, batch.labels))
        total = whole_loss(voxel_sums(model(mixture), labels))
        nothing = torch.zeros_like(total)
        return {"total": total, "inward": nothing, "outward": nothing}


def first_stage(pretraining: float, iterations: int) -> int:
    """Return the number of iterations of the first stage: `pretraining`, or where that is below 1 this share of all."""
    return round(pretraining * iterations if pretraining < 1 else pretraining)


def halves(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows with even places and those with odd ones."""
    return batch[::2], batch[1::2]


def whole_loss(sums: VoxelSums) -> Tensor:
    """Return half of Dice plus cross-entropy where all voxels have labels: `mixture_loss` without a second region."""
    return (masked_dice_loss(sums)[0] + sums.entropy.sum() / sums.voxels.sum()) / 2


def pseudo_labels(logits: Tensor) -> Tensor:
    """Return the largest component of every class but the background, (B, X, Y, Z) uint8; elsewhere 0.

    A voxel is of the class with the largest logit, and not background where both are equally likely. With two classes
    this is the largest component of p >= 1/2.
    """
    best, foreground = logits[:, 1:].max(dim=1)
    label = torch.where(best >= logits[:, 0], foreground + 1, 0)
    classes = torch.arange(1, logits.shape[1], device=logits.device)[:, None, None, None]
    kept = largest_component((label[:, None] == classes).flatten(0, 1)).view(len(label), -1, *label.shape[1:])
    return (kept * classes).sum(dim=1).to(torch.uint8)
