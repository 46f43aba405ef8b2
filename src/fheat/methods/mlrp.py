"""MLRP, mutual learning with reliable pseudo-labels: two networks teach each other where the teacher is more certain.

Paper: Su et al., Medical Image Analysis 2024; source Jiawei0o0/mutual-learning-with-reliable-pseudo-labels (without a
licence), from its facts. Deliberate differences:

- Two full networks with different random weights, where the original has two decoders on one encoder: where an encoder
  ends is not known for an arbitrary network. This costs a second encoder.
- Any number of classes and any grid of features: pseudo-labels are reduced to it at the centre voxel of each cell, and
  similarities are interpolated back.
- Reliability is cut at 0, because features may be negative here; the original has ReLU features, for which it is never
  below 0.
- Pseudo-labels and their reliability are computed without gradients, which they do not have in the original either.
- Optimiser and schedule are those of the run (the original: SGD, constant rate, 15,000 iterations).
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fheat.methods.base import Batch, Needs, Task
from fheat.methods.feature_grid import at_centres, to_voxels
from fheat.methods.probabilities import class_probabilities, entropy
from fheat.methods.prototypes import class_prototypes, similarities
from fheat.methods.two_networks import TwoNetworks, TwoNetworksSettings
from fheat.methods.vector_heads import precise
from fheat.networks.base import Features, SegmentationNetwork
from fheat.system import processes


class MLRPSettings(TwoNetworksSettings):
    """Settings of mutual learning with reliable pseudo-labels."""

    name: str = "mlrp"
    mutual: NonNegativeFloat = 1.0
    """Weight after the ramp of what the networks learn from each other."""
    double_softmax: bool = False
    """Whether the cross-entropy with pseudo-labels takes probabilities for logits, as the original did until October
    2024; its published numbers were most likely made so."""


class MLRP(TwoNetworks):
    """L = 0.5 (Dice_1 + Dice_2) on labelled crops + w (l_12 + l_21) on all crops, w = mutual r(t).

    l_ij, network i learning from j, is sum m R CE(z_i, y_j) / (sum m + 1e-6) over all voxels, with y_j the most likely
    class of j, m = 1 where the entropy of j is below that of i, and R the reliability of y_j, see `reliability`. With a
    weight of 0 two networks are trained apart from each other.
    """

    title = "mutual learning with reliable pseudo-labels (Su et al., Medical Image Analysis 2024)"
    Settings = MLRPSettings
    needs = Needs(unlabelled=True, features=True, second_network=True)
    names: ClassVar = ("total", "supervised", "mutual", "weight", "reliability")
    passes = (4, 0)

    def __init__(self, settings: MLRPSettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its two terms, the weight of the second, and the mean reliability of the first network."""
        pair = self.see(model, batch)
        supervised = self.supervised(pair, batch.labels)
        first, second = (form_opinion(seen) for seen in pair)
        mutual = self._taught(pair[0].logits, first, second) + self._taught(pair[1].logits, second, first)
        weight = self.options.mutual * self.next_ramp()
        total = supervised + weight * mutual
        return {
            "total": total,
            "supervised": supervised,
            "mutual": mutual,
            "weight": weight,
            "reliability": first.reliability.mean(),
        }

    def _taught(self, logits: Tensor, own: "Opinion", teacher: "Opinion") -> Tensor:
        """Return the loss of one network with the pseudo-labels of the other, where the other is more certain."""
        group, given = processes.current(), precise(logits)
        if self.options.double_softmax:
            given = given.softmax(dim=1)
        surprise = -given.log_softmax(dim=1).gather(1, teacher.label[:, None])[:, 0]
        learned = (own.entropy > teacher.entropy).to(surprise.dtype)
        total = (surprise * teacher.reliability * learned).sum()
        return group.sum(total) / (group.sum(learned.sum()) + 1e-6)


class Opinion(NamedTuple):
    """Pseudo-labels of a network, (B, X, Y, Z), with the entropy of its prediction and the labels' reliability."""

    label: Tensor
    entropy: Tensor
    reliability: Tensor


def form_opinion(seen: Features) -> Opinion:
    """Return what can be learned from the prediction of a network, as constants."""
    with torch.no_grad(), torch.autocast(seen.logits.device.type, enabled=False):
        p = class_probabilities(seen.logits)
        label = p.max(dim=1).indices  # as `argmax`, which takes ten times as long on a CPU
        return Opinion(label, entropy(p), reliability(p, label, precise(seen.penultimate)))


def reliability(p: Tensor, label: Tensor, features: Tensor) -> Tensor:
    """Return R = mean over classes k of 1 - (s_k - p_k)^2, at least 0: (B, X, Y, Z), 1 where both agree.

    p_k, (B, K, X, Y, Z), is the probability of class k, and s_k the cosine between the features of a voxel, (B, C, x,
    y, z), and the mean feature of the voxels that its sample has in class k.
    """
    prototypes = class_prototypes(features, at_centres(label, features.shape[2:]), p.shape[1])
    similar = to_voxels(similarities(features, prototypes), p.shape[2:])
    return (1 - (similar - p).square()).mean(dim=1).clamp(min=0)
