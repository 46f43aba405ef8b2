"""SASSNet: a second head learns the shape of the object as a distance map, and a discriminator judges that map.

Paper: Li et al., MICCAI 2020 (shape-aware semi-supervised segmentation); code kleinzcy/SASSnet (no licence found),
from its facts. Deliberate differences: softmax instead of a sigmoid for the segmentation; any number of classes, one
distance map per class but the background; the head for maps has the geometry of the network's own head; the mean over
whatever grid is left in the discriminator instead of a pool of fixed size; the exact distance transform runs on the
device; the network is trained with optimiser and schedule of the run (the original: SGD, 6000 iterations). The
discriminator has no norm, so that nothing in it depends on the number of processes.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import functional_call

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.dense_head import DenseHead
from fheat.methods.discriminator import SMALLEST_SIDE, Discriminator
from fheat.methods.feature_grid import evaluating
from fheat.methods.losses import squared_foreground_dice
from fheat.methods.own_adam import OwnAdam
from fheat.methods.signed_distance import signed_distances
from fheat.methods.teacher import RAMP_ITERATIONS, ramped_weight
from fheat.methods.vector_heads import precise
from fheat.networks.base import SegmentationNetwork
from fheat.networks.registry import spec_of
from fheat.ops.voxel_sums import voxel_sums
from fheat.system import processes
from fheat.system.settings import Short

BETAS = (0.9, 0.99)
"""Shares of their old values that the two moving averages of the discriminator's Adam keep."""
UNLABELLED, LABELLED = 0, 1
"""Classes of the discriminator."""


class SASSNetSettings(MethodSettings):
    """Settings of SASSNet."""

    name: str = "sassnet"
    distance: NonNegativeFloat = 0.3
    """Weight of the mean squared error of the distance maps."""
    adversarial: NonNegativeFloat = 0.015
    """Weight of the adversarial loss after the ramp: published are 0.015 for 8 labelled scans and 0.01 for 16."""
    ramp: Annotated[PositiveInt, Short("ramp")] = RAMP_ITERATIONS
    """Number of iterations until the adversarial loss has its full weight."""
    discriminator_rate: PositiveFloat = 1e-4
    """Learning rate of the discriminator, which is constant."""
    discriminator_width: PositiveInt = 64
    """Number of channels of the discriminator's first layer; each of the next three has twice as many."""


class SASSNet(Method):
    """L = Dice + 0.3 mean (m - d)^2 on labelled crops + w CE(discriminator(m, x), labelled) on unlabelled ones.

    m = tanh of the second head, (B, K - 1, X, Y, Z), d the signed distance to the border of each class, w the weight
    `adversarial` times the sigmoid ramp. After each update the discriminator learns to tell labelled crops from
    unlabelled ones. With both weights 0 this is supervised training with a Dice loss.
    """

    title = "shape-aware distance maps and a discriminator (Li et al., MICCAI 2020)"
    Settings = SASSNetSettings
    needs = Needs(unlabelled=True, features=True)
    names: ClassVar = ("total", "supervised", "distance", "adversarial", "weight", "discriminator_loss")
    passes = (2, 2)
    steps: Tensor
    judged: Tensor
    head: DenseHead
    discriminator: Discriminator
    adam: OwnAdam

    def __init__(self, settings: SASSNetSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("judged", torch.zeros(()))
        self._crops: tuple[Tensor, Tensor] | None = None

    @classmethod
    def check(cls, settings: MethodSettings, task: Task) -> None:
        """Raise `ValueError` where nothing of a crop would be left after the discriminator's four halvings."""
        if min(task.patch_size) < SMALLEST_SIDE:
            least = f"method sassnet needs at least {SMALLEST_SIDE} voxels per axis"
            raise ValueError(f"data.patch_size: {least}, not {task.patch_size}")

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make the head for distance maps, which the run's optimiser trains, and the discriminator with its own."""
        self.head = DenseHead(model, self.task.classes - 1)
        options, channels = self.options, spec_of(model).in_channels
        judge = Discriminator(self.task.classes - 1, channels, options.discriminator_width)
        self.discriminator = judge.requires_grad_(False).to(next(self.head.parameters()))
        self.adam = OwnAdam(list(self.discriminator.parameters()), options.discriminator_rate, BETAS)

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its three terms, the weight of the last, and the loss of the discriminator's update."""
        count = len(batch.images)
        logits, maps = self._predict(model, torch.cat([batch.images, batch.unlabelled]))
        supervised = squared_foreground_dice(voxel_sums(logits[:count], batch.labels))
        distance = (maps[:count] - signed_distances(batch.labels, self.task.classes)).square().mean()
        verdict = precise(self.discriminator(maps[count:], batch.unlabelled, dropout=False))
        adversarial = -verdict.log_softmax(dim=1)[:, LABELLED].mean()
        weight = self.options.adversarial * ramped_weight(self.steps, self.options.ramp)
        self.steps += 1
        self._crops = batch.images, batch.unlabelled
        return {
            "total": supervised + self.options.distance * distance + weight * adversarial,
            "supervised": supervised,
            "distance": distance,
            "adversarial": adversarial,
            "weight": weight,
            "discriminator_loss": self.judged,  # written by `after_update`, before it is logged
        }

    def after_update(self, model: SegmentationNetwork, iteration: Tensor) -> None:
        """Let the discriminator learn from the maps that the updated network makes of the same crops.

        A labelled crop is followed by an unlabelled one, so that the rows of a process, for which `drop_channels`
        draws, are those that one process with all crops has.
        """
        assert self._crops is not None, "losses come first"
        images = torch.stack(self._crops, dim=1).flatten(0, 1)
        self._crops = None
        with evaluating(model), torch.no_grad():
            maps = self._predict(model, images)[1]
        learned = {name: value.detach().requires_grad_() for name, value in self.discriminator.named_parameters()}
        verdict: Tensor = functional_call(self.discriminator, learned, (maps, images), {"dropout": True})
        labelled, unlabelled = verdict.log_softmax(dim=1).view(-1, 2, 2).unbind(dim=1)
        loss = -(labelled[:, LABELLED] + unlabelled[:, UNLABELLED]).mean() / 2
        self.adam.step(list(self.discriminator.parameters()), torch.autograd.grad(loss, list(learned.values())))
        self.judged.copy_(processes.current().mean(loss.detach()))

    def _predict(self, model: SegmentationNetwork, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the distance maps of images."""
        seen = model.forward_features(images)
        return seen.logits, precise(self.head(seen.penultimate, images.shape[2:])).tanh()
