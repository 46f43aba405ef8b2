"""CSE (Contextual Synergic Enhancement): one network, consistency of two views, and mixing guided by its attention.

Paper: Light-UNETR with CSE, the protocol the FHEAT-Seg paper keeps unchanged; source CUHK-AIM-Group/Light-UNETR (MIT),
from its facts. Deliberate differences: one pass over the weak view, without gradients, where the code makes two; one
pass over everything that is learned from, without the blank volumes that its strong pass carries along; patches of any
size, whose last blocks may be smaller; thresholds, boxes and components as tensor code. `passes` makes those of the
released code, which differ where a network has batch norms, as Light-UNETR does. `box` chooses between the two
conventions for what lies inside the replaced box: the text says unlabelled content, the released code puts labelled
content there.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fheat.methods.base import Batch, Method, MethodSettings, Needs, Task
from fheat.methods.boxes import box_length, box_mask
from fheat.methods.losses import mixture_loss, supervised_terms
from fheat.methods.teacher import ramp_factor
from fheat.methods.vector_heads import precise
from fheat.methods.views import (
    KEEP,
    LARGEST,
    PROBABILITY,
    NoiseDraws,
    add_noise,
    dimmed,
    draw_kept,
    draw_noise,
    draw_power,
    raised,
)
from fheat.networks.base import SegmentationNetwork
from fheat.ops import kernels
from fheat.ops.dct import without_autocast
from fheat.ops.largest_component import largest_component
from fheat.ops.voxel_sums import MOST_CLASSES, NOWHERE, voxel_sums
from fheat.system import processes
from fheat.system.capture import beside
from fheat.system.settings import Count, Short

BLOCK = 16
"""Number of voxels along each side of a block; a block has one threshold."""
FIRST_THRESHOLD = 0.8
THRESHOLD_DECAY = 0.99
"""Share of its old value that a threshold keeps in each iteration."""


class CSESettings(MethodSettings):
    """Settings of CSE: labelled and unlabelled scans, one network."""

    name: str = "cse"
    box: Annotated[Literal["unlabelled", "labelled"], Short("box")] = "unlabelled"
    """Content of the replaced box: unlabelled as in the paper's text, labelled as in the released code."""
    passes: Literal["joint", "released"] = "joint"
    """How crops go through the network: all that is learned from in one pass (joint), or as in the released code, with
    which the published numbers of Light-UNETR were made (released): weak views of labelled and unlabelled crops; strong
    views beside blank volumes; weak views again for pseudo-labels and attention; mixed crops. Losses differ only where
    a network has batch norms, as Light-UNETR does, whose statistics the blank volumes disturb, or dropout."""
    ramp: Annotated[Count, Short("ramp")] = 0
    """Number of iterations over which the unsupervised terms gain their weight. It helps short runs, in which a network
    that knows nothing yet would mostly learn from itself; the protocol has 0."""
    consistency: NonNegativeFloat = 1.0
    """Weight of the consistency between the two views."""
    mix: NonNegativeFloat = 4.0
    """Weight of the loss on mixed crops."""


class CSE(Method):
    """L = supervised + consistency of a strong view with the weak one + loss on labelled and unlabelled crops mixed.

    For exclusive classes. It remembers one confidence threshold per crop of the batch and block of 16^3 voxels, which
    starts at 0.8 and follows the confidence of the network.
    """

    title = "contextual synergic enhancement (Liu et al., IEEE TPAMI 2026, with Light-UNETR)"
    Settings = CSESettings
    needs = Needs(unlabelled=True, attention=True)
    names: ClassVar = ("total", "supervised", "consistency", "mix", "accepted")
    per_slot: ClassVar = ("threshold",)
    passes = (3, 1)
    threshold: Tensor
    steps: Tensor

    def __init__(self, settings: CSESettings, task: Task) -> None:
        super().__init__(settings, task)
        self.options = settings
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        grid = [-(-length // BLOCK) for length in task.patch_size]
        self.register_buffer("threshold", torch.full((task.batch, 1, *grid), FIRST_THRESHOLD))

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its three terms, and the share of voxels whose pseudo-label is `accepted`."""
        weak, released = batch.unlabelled, self.options.passes == "released"
        first = model(torch.cat([batch.images, weak])) if released else None
        with torch.no_grad():
            numbers = draw_power(weak), *draw_noise(weak)
            seen = model.forward_features(weak)
            again = read_weak(seen.logits, self.threshold)
            view = again if first is None else read_weak(first[len(batch.images) :], self.threshold)
            # Only the loss needs the components, which take as long as a fifth of the passes that come before it.
            apart = weak.device if kernels.usable(view.inside) else torch.device("cpu")
            pseudo = beside(partial(pseudo_labels, again), apart)
            self.threshold.copy_(THRESHOLD_DECAY * self.threshold + (1 - THRESHOLD_DECAY) * view.confidence)
            choice = draw_place(seen.attention, weak.shape[2:])
            views, mask = learned_views(batch, numbers, draw_kept(weak), choice, self.options.box == "labelled")
        logits = model(views) if first is None else _released_passes(model, first, views)
        terms = self._terms(logits, *learned_targets(batch.labels, view, pseudo(), mask))
        self.steps += 1
        return dict(zip(self.names, terms, strict=True))

    def _terms(self, logits: Tensor, targets: Tensor, regions: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, its three terms and the share of accepted voxels, in the order of `names`; see
        `learned_targets`."""
        weights, alone = (self.options.consistency, self.options.mix), processes.current().size == 1
        if kernels.usable(logits) and logits.shape[1] == 2 and alone and not self.options.ramp:
            from fheat.ops.kernels.cse import weighed_losses  # Triton takes a second to import

            with kernels.on_device(logits):
                return weighed_losses(logits, targets, regions, weights)
        labelled, unlabelled, mixed = voxel_sums(logits, targets, regions, 2).split([len(logits) // 3] * 3)
        supervised = torch.stack(supervised_terms(labelled)).sum()
        voxels = targets.numel() // 3
        consistency = unlabelled.entropy.sum() / voxels  # rejected voxels stay in the denominator
        mix = mixture_loss(mixed)
        unsupervised = weights[0] * consistency + weights[1] * mix
        if self.options.ramp:
            unsupervised = ramp_factor(self.steps, self.options.ramp) * unsupervised
        return supervised + unsupervised, supervised, consistency, mix, unlabelled.voxels.sum() / voxels


def _released_passes(model: SegmentationNetwork, first: Tensor, views: Tensor) -> Tensor:
    """Return the logits of `learned_views` as the released code computes them, strong views beside blank volumes.

    Those of the labelled crops come from its `first` pass, over these and the unlabelled ones.
    """
    images, strong, mixed = views.chunk(3)
    _, changed = model(torch.cat([torch.zeros_like(images), strong])).chunk(2)
    return torch.cat([first[: len(images)], changed, model(mixed)])


def learned_targets(labels: Tensor, view: "WeakView", pseudo: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes that `learned_views` are compared with, and the regions in which they count, each
    (3 B, X, Y, Z) uint8.

    Labelled crops have their `labels`. The strong view has the labels of the weak one, and is left out where these are
    not accepted. The mixture has labels in region 0, where `mask` (X, Y, Z) is set, and those of `pseudo` in region 1.
    """
    if kernels.usable(view.inside):
        from fheat.ops.kernels.cse import set_targets  # Triton takes a second to import

        with kernels.on_device(mask):
            return set_targets(labels, mask, pseudo, view.label, view.accepted)
    known = labels.to(torch.uint8)
    targets = known, view.label, torch.where(mask, known, pseudo)
    rejected, unlabelled = NOWHERE * (~view.accepted).to(torch.uint8), (~mask).to(torch.uint8)
    regions = torch.zeros_like(known), rejected, unlabelled.expand_as(known)
    return torch.cat(targets), torch.cat(regions)


def learned_views(
    batch: Batch, numbers: tuple[Tensor, Tensor, Tensor, Tensor], kept: Tensor, choice: Tensor, labelled: bool
) -> tuple[Tensor, Tensor]:
    """Return the crops (3 B, C, X, Y, Z) that are learned from, and the mask (X, Y, Z) of voxels mixed from labelled
    ones.

    First come the labelled crops, then the strong view of the others, by the `numbers` of `draw_power` and
    `draw_noise` and the blocks of `draw_kept`, then both mixed: labelled inside the box of this `choice`, or outside.
    """
    images, weak, patch = batch.images, batch.unlabelled, batch.unlabelled.shape[2:]
    if kernels.usable(weak) and has_whole_blocks(patch):
        from fheat.ops.kernels.views import change_and_mix  # Triton takes a second to import

        boxes, levels = [box_and_step(length) for length in patch], (LARGEST, PROBABILITY, 1 - KEEP)
        with kernels.on_device(weak):
            return change_and_mix(images, weak, (batch.low, batch.high), numbers, kept, choice, boxes, levels, labelled)
    power, *noise = numbers
    strong = dimmed(add_noise(raised(weak, batch.low, batch.high, power), NoiseDraws(*noise)), kept)
    box = box_at(choice, patch)
    mask = box if labelled else ~box
    return torch.cat([images, strong, torch.where(mask, images, weak)]), mask


class WeakView(NamedTuple):
    """A prediction read voxel by voxel, (B, X, Y, Z), and block by block, (B, 1, x, y, z).

    label: uint8, the most likely class.
    accepted: bool, whether its probability reaches the threshold of its block.
    inside: bool, whether the background's probability is at most one half.
    foreground: uint8, the most likely class but the background.
    confidence: float32, or float64 for float64 logits, mean over a block of the probability of `label`.
    """

    label: Tensor
    accepted: Tensor
    inside: Tensor
    foreground: Tensor
    confidence: Tensor


def read_weak(logits: Tensor, threshold: Tensor) -> WeakView:
    """Read logits (B, K, X, Y, Z), K up to 256, with thresholds (B, 1, x, y, z) of blocks of 16 voxels a side.

    Along an axis that is no multiple of 16, the last blocks have the voxels that are left.
    """
    grid = logits.shape[2:]
    if kernels.usable(logits) and 2 <= logits.shape[1] <= MOST_CLASSES and has_whole_blocks(grid):
        from fheat.ops.kernels.losses import read_weak as fused  # Triton takes a second to import

        with kernels.on_device(logits):
            return WeakView(*fused(logits, threshold, BLOCK))
    logits = precise(logits)
    p = logits.softmax(dim=1)
    confidence, label = p.max(dim=1, keepdim=True)
    return WeakView(
        label=label[:, 0].to(torch.uint8),
        accepted=(confidence >= spread(threshold)[..., : grid[0], : grid[1], : grid[2]])[:, 0],
        inside=p[:, 0] <= 0.5,
        foreground=(1 + logits[:, 1:].argmax(dim=1)).to(torch.uint8),
        confidence=F.avg_pool3d(confidence, BLOCK, ceil_mode=True),
    )


def has_whole_blocks(grid: Sequence[int]) -> bool:
    """Return whether a grid divides into blocks of 16 voxels a side, as the fused kernels need it."""
    return all(length % BLOCK == 0 for length in grid)


def spread(blocks: Tensor) -> Tensor:
    """Repeat every block value over its voxels: (..., x, y, z) to (..., 16 x, 16 y, 16 z)."""
    for axis in (-3, -2, -1):
        blocks = blocks.repeat_interleave(BLOCK, dim=axis)
    return blocks


def pseudo_labels(view: WeakView) -> Tensor:
    """Return the largest component of what is foreground with at least one half, (B, X, Y, Z) uint8, as classes.

    Voxels outside that component are background, 0.
    """
    return torch.where(largest_component(view.inside), view.foreground, 0)


def draw_place(attention: Tensor, patch: torch.Size) -> Tensor:
    """Draw one of 27 boxes, more likely where attention is high, and return its number; see `box_at`.

    Boxes measure two thirds of the patch and start at 0, 1 and 2 strides of half the rest. Scores are the attention in
    each box over the batch of all processes, brought to [0, 1]; their softmax is the chance. Equal scores make a
    uniform draw.
    """
    if kernels.usable(attention):
        from fheat.ops.kernels.boxes import choose_box, score_boxes  # Triton takes a second to import

        lengths = zip(patch, attention.shape[2:], strict=True)
        with kernels.on_device(attention):
            scores = score_boxes(attention, [_box_weights(*pair, attention.device) for pair in lengths])
            scores = processes.current().sum(scores)
            return choose_box(scores, torch.empty_like(scores).exponential_())
    chance = box_scores(attention, patch).flatten().softmax(dim=0)
    return (chance / torch.empty_like(chance).exponential_()).argmax()


def box_at(choice: Tensor, patch: torch.Size) -> Tensor:
    """Return the mask (X, Y, Z) bool of the box with this number, 9 i + 3 j + k for the place (i, j, k)."""
    places = zip((choice // 9, choice // 3 % 3, choice % 3), patch, strict=True)
    return box_mask([place * box_and_step(length)[1] for place, length in places], patch)


def box_scores(attention: Tensor, patch: torch.Size) -> Tensor:
    """Return the attention inside each box, (3, 3, 3), between 0 for the least and 1 for the most; 0 where all agree.

    Attention, (B, 1, x, y, z), is thought of as interpolated to the patch, corners aligned. Interpolating and adding up
    are both linear along each axis, so one 3 x n matrix per axis does both.
    """
    scores = attention.float().sum(dim=(0, 1))
    with without_autocast(attention):  # which would round the sums, or refuse what it has rounded
        for axis, length in enumerate(patch):
            weights = _box_weights(length, attention.shape[axis + 2], attention.device)
            scores = torch.tensordot(scores, weights, ([0], [1]))
    scores = processes.current().sum(scores)
    low, high = scores.min(), scores.max()
    return torch.where(high > low, (scores - low) / (high - low).clamp(min=1e-30), 0.0)


def box_and_step(length: int) -> tuple[int, int]:
    """Return the box's length along an axis of the patch, and the distance between starts."""
    box = box_length(length)
    return box, int((length - box) / 2)


@lru_cache
def _box_weights(length: int, cells: int, device: torch.device) -> Tensor:
    """Return (3, cells): how much each cell of the attention's axis counts in each of the three boxes."""
    place = torch.arange(length, dtype=torch.float64) * ((cells - 1) / max(length - 1, 1))
    near = (1 - (place[:, None] - torch.arange(cells)).abs()).clamp(min=0)
    box, step = box_and_step(length)
    return torch.stack([near[start : start + box].sum(dim=0) for start in (0, step, 2 * step)]).float().to(device)
