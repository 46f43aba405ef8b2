"""Mean teacher: the network agrees with a moving average of itself on scans without labels.

Paper: Tarvainen and Valpola, NeurIPS 2017; the 3D form follows HiLab-git/SSL4MIS (MIT), from its facts. Deliberate
differences: one pass of the network over labelled and unlabelled crops together; the teacher starts as a copy of the
network (its first update would make it one); the optimiser and schedule are those of the run.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.losses import half_supervised_loss
from fheat.methods.probabilities import class_probabilities
from fheat.methods.teacher import RAMP_ITERATIONS, Teacher, noisy, ramped_weight
from fheat.networks.base import SegmentationNetwork
from fheat.system.settings import Short


class MeanTeacherSettings(MethodSettings):
    """Settings of the mean teacher."""

    name: str = "mean_teacher"
    consistency: NonNegativeFloat = 0.1
    """Weight of the consistency loss after the ramp."""
    ramp: Annotated[PositiveInt, Short("ramp")] = RAMP_ITERATIONS
    """Number of iterations until the consistency loss has its full weight."""
    decay: PositiveFloat = 0.99
    """Largest share of its old weights that the teacher keeps in an update."""
    noise: NonNegativeFloat = 0.1
    """Standard deviation of the noise on what the teacher sees, which is cut at twice this value."""


class MeanTeacher(Method):
    """L = (CE + Dice) / 2 on labelled crops + w mean (p - p_teacher)^2 on unlabelled ones.

    p and p_teacher are softmax probabilities, (U, K, X, Y, Z); w = consistency r(t), the sigmoid ramp of `ramp_factor`.
    With a weight of 0 this is supervised training.
    """

    title = "mean teacher (Tarvainen and Valpola, NeurIPS 2017)"
    Settings = MeanTeacherSettings
    needs = Needs(unlabelled=True, teacher=True)
    names: ClassVar[tuple[str, ...]] = ("total", "supervised", "consistency", "weight")
    passes = (2, 1)
    steps: Tensor
    teacher: Teacher

    def __init__(self, settings: MeanTeacherSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make the teacher, a copy of the network."""
        self.teacher = Teacher(model, self.options.decay)

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its two terms and the weight of the second."""
        with torch.no_grad():
            target = class_probabilities(self.teacher(noisy(batch.unlabelled, self.options.noise)))
        labelled, unlabelled = model(torch.cat([batch.images, batch.unlabelled])).split(
            [len(batch.images), len(batch.unlabelled)]
        )
        supervised = half_supervised_loss(labelled, batch.labels)
        consistency = (class_probabilities(unlabelled) - target).square().mean()
        weight = self.options.consistency * ramped_weight(self.steps, self.options.ramp)
        self.steps += 1
        total = supervised + weight * consistency
        return {"total": total, "supervised": supervised, "consistency": consistency, "weight": weight}

    def after_update(self, model: SegmentationNetwork, iteration: Tensor) -> None:
        """Move the teacher towards the network."""
        self.teacher.follow(model, iteration)
