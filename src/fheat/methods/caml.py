"""CAML, correlation-aware mutual learning: two networks agree on voxels and on how voxels relate to labelled ones.

Paper: Gao et al., MICCAI 2023; source Herschel555/CAML (MIT), from its facts. Deliberate differences:

- Both networks are of the run's kind, with different random weights; only the cross-sample attention tells the second
  one apart, while the original also varies the decoder.
- Any number of classes (sharpened predictions sum to one) and any grid of features: labels and predictions are reduced
  to it at the centre voxel of each cell.
- The memory holds the latest vectors of each class in rings of fixed size, a random choice of those of each iteration;
  the original holds every voxel of the latest crop of each labelled scan.
- Batch norms of the prediction heads see the voxels that are compared, in the original all on which both agree.
- Features of the second network are moved to channels last before they are cut into vectors, see `scramble`.
- Optimiser and schedule are those of the run (the original: SGD, constant rate, 15,000 iterations).

Several processes share the memory, the choice of voxels and the statistics of the heads; the attention sees the crops
of its own process.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fheat.methods.base import Batch, MethodSettings, Needs, Task
from fheat.methods.cross_sample import CrossSampleAttention
from fheat.methods.feature_grid import at_centres, example_features, vectors
from fheat.methods.probabilities import class_probabilities, sharpened
from fheat.methods.ring_memory import RingMemory, choose, class_scores
from fheat.methods.two_networks import TwoNetworks, TwoNetworksSettings
from fheat.methods.vector_heads import VectorHead, precise
from fheat.networks.base import Features, SegmentationNetwork
from fheat.networks.registry import spec_of
from fheat.networks.stages import encoder_stage
from fheat.system import processes
from fheat.system.errors import BadInput

CHANNELS = 32
"""Length of the vectors that are compared."""


class CAMLSettings(TwoNetworksSettings):
    """Settings of correlation-aware mutual learning. The published ramps: 6000 iterations with 4 labelled scans, 3000
    with 8, 2250 with 16."""

    name: str = "caml"
    consistency: NonNegativeFloat = 1.0
    """Weight after the ramp of the consistency of each network with the sharpened prediction of the other."""
    correlation: NonNegativeFloat = 0.05
    """Weight after the ramp of the consistency of their correlations with the memory."""
    sharpening: PositiveFloat = 0.1
    """Temperature by which predictions are sharpened."""
    temperature: PositiveFloat = 0.1
    """Temperature of the softmax over correlations."""
    memory: PositiveInt = 4096
    """Number of vectors of each class that are remembered."""
    added: PositiveInt = 1024
    """Largest number of vectors of each class that an iteration adds to the memory."""
    compared: PositiveInt = 256
    """Number of vectors of each class that are drawn from the memory; a class with fewer is left out."""
    voxels: PositiveInt = 12_800
    """Largest number of unlabelled voxels of each class whose correlations are computed, the most confident ones."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout probability of the cross-sample attention."""
    scramble: bool = False
    """Whether features of the second network that enter the memory are cut into vectors without moving channels last,
    as in the released code, with which the published numbers were made; half of each vector is then meaningless."""


class CAML(TwoNetworks):
    """L = 0.5 (Dice_V + Dice_A) + w_c (mean (p_V - S(p_A))^2 + mean (p_A - S(p_V))^2) + w_o L_o, w = weight r(t).

    V is the network of the run, A the second one with cross-sample attention, S sharpening. L_o is the cross-entropy
    between the softmax over correlations of a voxel of A with the memory and that of V, mean over unlabelled voxels on
    which both agree. With both weights 0 two networks are trained apart from each other.
    """

    title = "correlation-aware mutual learning (Gao et al., MICCAI 2023)"
    Settings = CAMLSettings
    needs = Needs(unlabelled=True, features=True, second_network=True)
    names: ClassVar = ("total", "supervised", "consistency", "correlation", "ramp", "agreement")
    passes = (4, 0)

    def __init__(self, settings: CAMLSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings

    @classmethod
    def check(cls, settings: MethodSettings, task: Task) -> None:
        """Raise `ValueError` where more vectors are drawn or added than the memory holds."""
        assert isinstance(settings, CAMLSettings)
        for name in ("compared", "added"):
            if getattr(settings, name) > settings.memory:
                raise ValueError(
                    f"method.{name}: {getattr(settings, name)} is more than the memory of {settings.memory}"
                )

    def prepare(self, model: SegmentationNetwork, build: Callable[[], SegmentationNetwork]) -> None:
        """Make the second network with its attention, the heads of both, and the memory."""
        super().prepare(model, build)
        try:
            stage = encoder_stage(self.second, spec_of(self.second).in_channels)
        except ValueError as error:
            raise BadInput("network", str(error), "use a network with an encoder, or another method") from None
        width = example_features(self.second).penultimate.shape[1]
        self.attention = CrossSampleAttention(stage.channels, self.options.dropout)
        self.attention.follow(stage.module)
        self.projections = nn.ModuleList(VectorHead(width, CHANNELS, CHANNELS, running=True) for _ in range(2))
        self.predictions = nn.ModuleList(VectorHead(CHANNELS, CHANNELS, CHANNELS) for _ in range(2))
        self.memory = RingMemory(self.task.classes, self.options.memory, CHANNELS)
        self.to(next(model.parameters()))

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its three terms, the ramp of the last two, and the share of cells that both label alike."""
        pair = self.see(model, batch)
        supervised = self.supervised(pair, batch.labels)
        consistency = mutual_consistency(pair[0].logits, pair[1].logits, self.options.sharpening)
        with torch.autocast(batch.images.device.type, enabled=False):
            views = [View(seen) for seen in pair]
            agree = views[0].label == views[1].label
            self._remember(views, agree, batch.labels)
            correlation = self._correlation(views, agree, len(batch.labels))
        ramp = self.next_ramp()
        total = supervised + ramp * (self.options.consistency * consistency + self.options.correlation * correlation)
        return {
            "total": total,
            "supervised": supervised,
            "consistency": consistency,
            "correlation": correlation,
            "ramp": ramp,
            "agreement": agree.float().mean(),
        }

    @torch.no_grad()
    def _remember(self, views: list["View"], agree: Tensor, labels: Tensor) -> None:
        """Add projected features of labelled cells that both networks label correctly, the mean of the two."""
        group, count = processes.current(), len(labels)
        known = at_centres(labels, agree.shape[1:])
        correct = agree[:count] & (views[0].label[:count] == known)
        chance = group.rows(torch.rand(group.size * count, *known.shape[1:], device=known.device))
        scores = class_scores(chance.flatten(), known.flatten(), correct.flatten(), self.task.classes)
        places, kept = choose(scores, self.options.added)
        first, second = (view.features[:count] for view in views)
        cut = second.reshape(-1, second.shape[1]) if self.options.scramble else vectors(second)
        rows = (one.index_select(0, places.flatten()) for one in (vectors(first), cut))
        projected = [head(one, running=True) for head, one in zip(self.projections, rows, strict=True)]
        self.memory.write((sum(projected) / 2).unflatten(0, places.shape), kept)

    def _correlation(self, views: list["View"], agree: Tensor, count: int) -> Tensor:
        """Return L_o of the unlabelled cells, those after the first `count` crops; 0 while the memory has too few."""
        group = processes.current()
        confidence, label = (one[count:].flatten() for one in (views[0].confidence, views[0].label))
        scores = class_scores(confidence, label, agree[count:].flatten(), self.task.classes)
        places, kept = (one.flatten() for one in choose(scores, self.options.voxels))
        entries, enough = self.memory.sample(self.options.compared)
        absent = ~enough[:, None].expand(entries.shape[:2]).flatten()
        shares = []
        for view, project, predict in zip(views, self.projections, self.predictions, strict=True):
            rows = vectors(view.features[count:]).index_select(0, places)
            logits = predict(project(rows, kept), kept) @ entries.flatten(0, 1).T / self.options.temperature
            shares.append(logits.masked_fill(absent, torch.finfo(logits.dtype).min).softmax(dim=1))
        surprise = -(shares[1] * torch.log(shares[0] + 1e-8)).sum(dim=1)
        mean = group.sum((surprise * kept).sum()) / group.sum(kept.sum().to(surprise.dtype)).clamp(min=1)
        return mean * enough.any()


class View:
    """Prediction of a network for the crops, on the grid of its features: features, labels and confidence in them."""

    def __init__(self, seen: Features) -> None:
        self.features = precise(seen.penultimate)
        p = class_probabilities(at_centres(seen.logits.detach(), self.features.shape[2:]))
        self.confidence, self.label = p.max(dim=1)


def mutual_consistency(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return mean (p_1 - S(p_2))^2 + mean (p_2 - S(p_1))^2 of logits (B, K, X, Y, Z).

    S sharpens. Gradients go through sharpened predictions too.
    """
    one, other = ((class_probabilities(logits), sharpened(logits, temperature)) for logits in (first, second))
    return (one[0] - other[1]).square().mean() + (other[0] - one[1]).square().mean()
