"""CSE (Contextual Synergic Enhancement): one network, consistency of two views, and mixing guided by its attention.

Paper: Light-UNETR with CSE, the protocol the FHEAT-Seg paper keeps unchanged; code released with it. Deliberate
differences: no blank volumes in the strong pass (there is no batch norm for them to disturb); one pass over the weak
view, without gradients, where the code makes two; one pass over everything that is learned from; thresholds, boxes and
components as tensor code. `box` chooses between the two conventions for what lies inside the replaced box: the text
says unlabelled content, the released code puts labelled content there.
"""

from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fheat.data.augment import soft_mask
from fheat.group import ALONE, Group
from fheat.methods.base import Batch, Method
from fheat.methods.components import largest_component
from fheat.methods.losses import mixture_loss, supervised_terms
from fheat.methods.ramp import sigmoid_ramp
from fheat.models.base import SegmentationNetwork
from fheat.ops.voxel_sums import NOWHERE, VoxelSums, voxel_sums
from fheat.ops.weak_view import BLOCK, WeakView, read_weak

FIRST_THRESHOLD = 0.8
KEEP = 0.99
Inside = Literal["unlabelled", "labelled"]


class CSE(Method):
    """Supervised + consistency + attention-guided replacement, for exclusive classes.

    Args:
        patch_size: of the crops; each axis a multiple of 16.
        scans: labelled and as many unlabelled scans per step; they are mixed in pairs.
        box: what the box holds, `unlabelled` content (the paper's text) or `labelled` (the released code).
        consistency, mix: weights of the two unsupervised terms.
        ramp: steps over which these weights rise, see `sigmoid_ramp`; 0, the protocol, has them in full at once. For
            short runs, in which a network that knows nothing yet would learn from itself most of the time.
        group: the processes that share a batch, its sums and its box.

    Remembers one confidence threshold per batch slot and 16-voxel block, starting at 0.8.
    """

    names: ClassVar = ("total", "supervised", "consistency", "mix", "accepted")
    per_slot: ClassVar = ("threshold",)
    threshold: Tensor
    steps: Tensor

    def __init__(
        self,
        *,
        patch_size: tuple[int, int, int],
        scans: int = 2,
        box: Inside = "unlabelled",
        consistency: float = 1.0,
        mix: float = 4.0,
        ramp: int = 0,
        group: Group = ALONE,
    ) -> None:
        super().__init__()
        if any(length % BLOCK for length in patch_size):
            raise ValueError(f"patch_size={patch_size} does not divide into blocks of {BLOCK}: use multiples of it")
        if box not in ("unlabelled", "labelled"):
            raise ValueError(f"box={box!r} is unknown: use 'unlabelled' or 'labelled'")
        self.labelled = self.unlabelled = scans
        self.box = box
        self.group = group
        self.weights = consistency, mix
        self.ramp = ramp
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        grid = [length // BLOCK for length in patch_size]
        self.register_buffer("threshold", torch.full((scans, 1, *grid), FIRST_THRESHOLD))

    def losses(self, model: SegmentationNetwork, batch: Batch) -> dict[str, Tensor]:
        """Return `total`, its three terms, and the share of voxels whose pseudo-label is `accepted`."""
        with torch.no_grad():
            seen = model.forward_features(batch.weak)
            view = read_weak(seen.logits, self.threshold)
            self.threshold.copy_(KEEP * self.threshold + (1 - KEEP) * view.confidence)
            box = draw_box(seen.attention, batch.weak.shape[2:], self.group) > 0
            mask = box if self.box == "labelled" else ~box
            mixture = torch.where(mask, batch.images, batch.weak)
        logits = model(torch.cat([batch.images, soft_mask(batch.strong, group=self.group), mixture]))
        labelled, strong, mixed = self._sums(logits, batch.labels, view, mask)
        supervised = sum(supervised_terms(labelled, self.group))
        voxels = view.label.numel()
        consistency = strong.entropy.sum() / voxels  # rejected voxels stay in the denominator
        mix = mixture_loss(mixed)
        unsupervised = self.weights[0] * consistency + self.weights[1] * mix
        if self.ramp:
            unsupervised = sigmoid_ramp(self.steps, self.ramp) * unsupervised
        self.steps += 1
        total = supervised + unsupervised
        return {
            "total": total,
            "supervised": torch.as_tensor(supervised),
            "consistency": consistency,
            "mix": mix,
            "accepted": strong.voxels.sum() / voxels,
        }

    def _sums(self, logits: Tensor, labels: Tensor, view: WeakView, mask: Tensor) -> tuple[VoxelSums, ...]:
        """Return the sums of the labelled scans, of the strong view against the labels of the weak one where these are
        accepted, and of the mixture: region 0 has labels, where `mask` (X, Y, Z) is set, region 1 pseudo-labels.
        """
        known = labels.to(torch.uint8)
        targets = known, view.label, torch.where(mask, known, pseudo_labels(view))
        rejected, unlabelled = NOWHERE * (~view.accepted).to(torch.uint8), (~mask).to(torch.uint8)
        regions = torch.zeros_like(known), rejected, unlabelled.expand_as(known)
        sums = voxel_sums(logits, torch.cat(targets), torch.cat(regions), 2)
        return sums.split([len(target) for target in targets])


def pseudo_labels(view: WeakView) -> Tensor:
    """Return the largest component of what is foreground with at least one half, (B, X, Y, Z) uint8, as classes.

    Voxels outside that component are background, 0.
    """
    return torch.where(largest_component(view.inside), view.foreground, 0)


def draw_box(attention: Tensor, patch: torch.Size, group: Group = ALONE) -> Tensor:
    """Draw one of 27 boxes, more likely where attention is high, and return it as a mask (X, Y, Z) of ones and zeros.

    Boxes measure two thirds of the patch and start at 0, 1 and 2 strides of half the rest. Scores are the attention in
    each box over the whole batch of the group, brought to [0, 1]; their softmax is the chance. Equal scores make a
    uniform draw.
    """
    chance = box_scores(attention, patch, group).flatten().softmax(dim=0)
    choice = (chance / torch.empty_like(chance).exponential_()).argmax()
    mask = attention.new_ones((), dtype=torch.float32)
    for place, length in zip((choice // 9, choice // 3 % 3, choice % 3), patch, strict=True):
        box, step = box_and_step(length)
        index = torch.arange(length, device=attention.device) - place * step
        mask = mask[..., None] * ((index >= 0) & (index < box)).float()
    return mask


def box_scores(attention: Tensor, patch: torch.Size, group: Group = ALONE) -> Tensor:
    """Return the attention inside each box, (3, 3, 3), between 0 for the least and 1 for the most; 0 where all agree.

    Attention, (B, 1, x, y, z), is thought of as interpolated to the patch, corners aligned. Interpolating and adding up
    are both linear along each axis, so one 3 x n matrix per axis does both.
    """
    scores = attention.float().sum(dim=(0, 1))
    for axis, length in enumerate(patch):
        scores = torch.tensordot(scores, _box_weights(length, attention.shape[axis + 2], attention.device), ([0], [1]))
    scores = group.sum(scores)
    low, high = scores.min(), scores.max()
    return torch.where(high > low, (scores - low) / (high - low).clamp(min=1e-30), 0.0)


def box_and_step(length: int) -> tuple[int, int]:
    """Return the box's length along an axis of the patch, and the distance between starts."""
    box = int(2 / 3 * length)
    return box, int((length - box) / 2)


@lru_cache
def _box_weights(length: int, cells: int, device: torch.device) -> Tensor:
    """Return (3, cells): how much each cell of the attention's axis counts in each of the three boxes."""
    place = torch.arange(length, dtype=torch.float64) * ((cells - 1) / max(length - 1, 1))
    near = (1 - (place[:, None] - torch.arange(cells)).abs()).clamp(min=0)
    box, step = box_and_step(length)
    return torch.stack([near[start : start + box].sum(dim=0) for start in (0, step, 2 * step)]).float().to(device)
