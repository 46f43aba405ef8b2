"""SS-Net: predictions that are smooth around every scan, and features that gather around good ones of their class.

Paper: Wu et al., MICCAI 2022; code ycwu1997/SS-Net (no licence found), from its facts. It is the reference that the
FHEAT-Seg paper gives for its row "SASSNet". Deliberate differences: three defects are mended unless `as_published` is
set; any number of classes; vectors are those of the feature grid, with the label in the centre of each cell; what the
smoothness compares with is the prediction of the pass that learns instead of one more pass; batch norms of the heads
have the statistics of all processes' rows; the mean over all pairs of vectors and memory is computed as the distance
from the memory's weighted mean direction, which is the same; optimiser and schedule are those of the run (the
original: SGD, 15,000 iterations). As in the code, the memory of a class without correct voxels stays what it was.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.class_memory import ClassMemory
from fheat.methods.feature_grid import at_centres, example_features, vectors
from fheat.methods.losses import linear_foreground_dice
from fheat.methods.smoothness import frozen_statistics, smoothness_loss, uniform_noise
from fheat.methods.teacher import RAMP_ITERATIONS, ramped_weight
from fheat.methods.vector_heads import VectorHead, precise
from fheat.networks.base import SegmentationNetwork
from fheat.ops.voxel_sums import voxel_sums
from fheat.system import processes
from fheat.system.settings import Short

WIDTH = 32
"""Number of channels of projected vectors, of hidden layers and of the memory."""
PROBE = 10.0
"""Length of the perturbation at which the direction of the strongest change is measured."""
_TINY = 1e-12


class SSNetSettings(MethodSettings):
    """Settings of SS-Net."""

    name: str = "ss_net"
    consistency: NonNegativeFloat = 1.0
    """Weight of smoothness and class separation after the ramp."""
    separation: NonNegativeFloat = 0.1
    """Weight of class separation relative to smoothness."""
    ramp: Annotated[PositiveInt, Short("ramp")] = RAMP_ITERATIONS
    """Number of iterations until these terms have their full weight."""
    radius: PositiveFloat = 10.0
    """Length (L2 norm) of the perturbation of a crop: 10 is 0.01 per voxel for the million voxels of 112x112x80."""
    entries: PositiveInt = 32
    """Number of vectors that the memory holds for each class."""
    as_published: bool = False
    """Reproduce three defects of the code that made the published numbers: the background has no memory, so that the
    mean over classes lacks a term (with two classes it is halved); the vectors with the lowest scores are remembered
    instead of the highest; the weights of remembered vectors are all 1."""


class SSNet(Method):
    """L = Dice on labelled crops + w (smoothness + 0.1 (separation of labelled + separation of unlabelled crops)).

    Smoothness is the Dice distance between predictions on crops and on crops with a virtual adversarial perturbation.
    Separation is the mean over classes c of sum_i a_i (1 - cos(u_i, m_j)) b_j: u_i are predicted vectors of class c by
    label or pseudo-label, m_j the remembered ones of it, a and b learned weights that add up to 1. With `consistency` 0
    this is supervised training with a Dice loss.
    """

    title = "smoothness and class separation (Wu et al., MICCAI 2022)"
    Settings = SSNetSettings
    needs = Needs(unlabelled=True, features=True)
    names: ClassVar = ("total", "supervised", "smoothness", "separation", "weight")
    passes = (6, 0)
    steps: Tensor
    memory: ClassMemory

    def __init__(self, settings: SSNetSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings
        self.remembered = range(1 if settings.as_published else 0, task.classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make the heads on vectors, which the run's optimiser trains, and the empty memory."""
        features, classes = example_features(model).penultimate, len(self.remembered)
        self.projection = VectorHead(features.shape[1], WIDTH, WIDTH, running=True).to(features)
        self.prediction = VectorHead(WIDTH, WIDTH, WIDTH).to(features)
        self.selectors = _selectors(classes).to(features)
        self.memory_selectors = _selectors(0 if self.options.as_published else classes).to(features)
        self.memory = ClassMemory(classes, self.options.entries, WIDTH).to(features)

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its three terms, and the weight of the last two."""
        images = torch.cat([batch.images, batch.unlabelled])
        seen, count = model.forward_features(images), len(batch.images)
        supervised = linear_foreground_dice(voxel_sums(seen.logits[:count], batch.labels))
        smoothness = self._smoothness(model, batch, precise(seen.logits.detach()).softmax(dim=1))
        grid = seen.penultimate.shape[2:]
        labels = at_centres(batch.labels, grid).flatten().long()
        guesses = at_centres(seen.logits.argmax(dim=1), grid)
        known, unknown = vectors(seen.penultimate[:count]), vectors(seen.penultimate[count:])
        self._remember(known.detach(), torch.where(guesses[:count].flatten() == labels, labels, -1))
        separation = self._separation(known, labels) + self._separation(unknown, guesses[count:].flatten())
        self.steps += 1  # the ramp counts from 1
        weight = self.options.consistency * ramped_weight(self.steps, self.options.ramp)
        total = supervised + weight * (smoothness + self.options.separation * separation)
        terms = {"supervised": supervised, "smoothness": smoothness, "separation": separation}
        return {"total": total, **terms, "weight": weight}

    def _smoothness(self, model: SegmentationNetwork, batch: Batch, clean: Tensor) -> Tensor:
        def predict(images: Tensor) -> Tensor:
            return precise(model(images)).softmax(dim=1)

        crops = batch.images, batch.unlabelled
        noise = torch.cat([uniform_noise(some) for some in crops])
        with frozen_statistics(model):
            return smoothness_loss(
                predict,
                torch.cat(crops),
                clean,
                noise,
                probe=PROBE,
                radius=self.options.radius,
                weights=model.parameters(),
            )

    @torch.no_grad()
    def _remember(self, rows: Tensor, correct: Tensor) -> None:
        """Replace the memory of every class that some rows were correctly predicted as; `correct` is -1 for others."""
        vectors = self.projection(rows, running=True)
        for place, kind in enumerate(self.remembered):
            score = self.selectors[place](vectors, correct == kind)[:, 0]
            self.memory.replace(place, vectors, -score if self.options.as_published else score, correct == kind)

    def _separation(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over classes of the weighted distance of the class's vectors from its memory.

        A class with fewer than two vectors in the batch, or in the memory, adds 0.
        """
        group, vectors = processes.current(), self.prediction(self.projection(rows))
        directions = F.normalize(vectors, dim=1)
        total: Tensor = vectors.new_zeros(())
        for place, kind in enumerate(self.remembered):
            members = labels == kind
            score = self.selectors[place](vectors.detach(), members)[:, 0].sigmoid() * members
            distance = 1 - (directions * self._centre(place)).sum(dim=1)
            mean = group.sum((score * distance).sum()) / group.sum(score.sum()).clamp(min=_TINY)
            enough = (group.sum(members.sum()) > 1) & (self.memory.filled[place].sum() > 1)
            total = total + torch.where(enough, mean, 0.0)
        return total / self.task.classes

    def _centre(self, place: int) -> Tensor:
        """Return the weighted mean of the directions that the memory holds for a class, (32,)."""
        memory, filled = self.memory.vectors[place], self.memory.filled[place]
        weights = filled.to(memory.dtype)
        if not self.options.as_published:
            weights = weights * self.memory_selectors[place](memory, filled)[:, 0].sigmoid()
        shares = weights / weights.sum().clamp(min=_TINY)
        return (shares[:, None] * F.normalize(memory, dim=1)).sum(dim=0)


def _selectors(classes: int) -> nn.ModuleList:
    """Return one head per class that gives every vector a score."""
    return nn.ModuleList(VectorHead(WIDTH, WIDTH, 1, slope=0.2) for _ in range(classes))
