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
import torch.nn.functional as F
from torch import Tensor

from fheat.data.augment import soft_mask
from fheat.group import ALONE, Group
from fheat.methods.base import Batch, Method
from fheat.methods.components import largest_component
from fheat.methods.losses import masked_dice_loss, one_hot, supervised_loss
from fheat.methods.ramp import sigmoid_ramp
from fheat.models.base import SegmentationNetwork

BLOCK = 16
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
            weak = seen.logits.float()
            mask = draw_box(seen.attention, batch.weak.shape[2:], self.group)
            if self.box == "unlabelled":
                mask = 1 - mask
            mixture = batch.images * mask + batch.weak * (1 - mask)
        views = torch.cat([batch.images, soft_mask(batch.strong, group=self.group), mixture])
        labelled, strong, mixed = model(views).float().split([self.labelled, self.unlabelled, self.labelled])
        supervised = sum(supervised_loss(labelled, batch.labels, self.group))
        consistency, accepted = self._consistency(weak, strong)
        mix = mixture_loss(mixed, batch.labels, pseudo_labels(weak), mask)
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
            "accepted": accepted,
        }

    def _consistency(self, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the strong view to the weak one's labels where they are confident, over all voxels.

        Voxels are accepted by the thresholds before these move towards the mean confidence of their block.
        """
        confidence, label = weak.softmax(dim=1).max(dim=1)
        accepted = (confidence[:, None] >= spread(self.threshold)).float()[:, 0]
        block_mean = F.avg_pool3d(confidence[:, None], BLOCK)
        self.threshold.copy_(KEEP * self.threshold + (1 - KEEP) * block_mean)
        loss = (F.cross_entropy(strong, label, reduction="none") * accepted).mean()
        return loss, accepted.mean()


def pseudo_labels(logits: Tensor) -> Tensor:
    """Return the largest component of what is foreground with at least one half, (B, X, Y, Z), as classes.

    `logits` (B, K, X, Y, Z). Voxels outside that component are background, 0.
    """
    inside = largest_component(logits.softmax(dim=1)[:, 0] <= 0.5)
    return torch.where(inside, 1 + logits[:, 1:].argmax(dim=1), 0)


def mixture_loss(logits: Tensor, labels: Tensor, pseudo: Tensor, mask: Tensor) -> Tensor:
    """Half of Dice plus cross-entropy: against labels where `mask` is 1, with half the weight against pseudo-labels
    elsewhere.

    Shapes: logits (B, K, X, Y, Z), labels and pseudo (B, X, Y, Z), mask (X, Y, Z).
    """
    probabilities, classes = logits.softmax(dim=1), logits.shape[1]
    loss = logits.new_zeros(())
    for target, region, weight in ((labels, mask, 1.0), (pseudo, 1 - mask, 0.5)):
        dice = masked_dice_loss(probabilities, one_hot(target, classes), region)
        voxels = region.sum() * len(logits)
        entropy = (F.cross_entropy(logits, target, reduction="none") * region).sum() / (voxels + 1e-16)
        loss = loss + weight * (dice + entropy)
    return loss / 2


def spread(blocks: Tensor) -> Tensor:
    """Repeat every block value over its voxels: (..., x, y, z) to (..., 16 x, 16 y, 16 z)."""
    for axis in (-3, -2, -1):
        blocks = blocks.repeat_interleave(BLOCK, dim=axis)
    return blocks


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
