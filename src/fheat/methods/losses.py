"""Losses of the protocols, over all voxels of a batch at once. Targets are labels, never gradients.

Shapes: logits (B, K, X, Y, Z), labels (B, X, Y, Z) whole numbers in [0, K), masks (X, Y, Z) or (B, X, Y, Z).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.group import ALONE, Group

_AXES = (2, 3, 4)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(B, X, Y, Z) to (B, K, X, Y, Z) float32."""
    values = torch.arange(classes, device=labels.device).view(1, -1, 1, 1, 1)
    return (labels[:, None] == values).float()


def squared_dice_loss(probabilities: Tensor, target: Tensor, epsilon: float = 1e-10, *, group: Group = ALONE) -> Tensor:
    """1 - (2 sum pg + e) / (sum p^2 + sum g^2 + e), sums over the whole batch, mean over classes (DSQ2).

    `probabilities` and `target` are (B, K, ...). A perfect prediction gives 0. The batch is that of the whole group.
    """
    axes = (0, *_AXES)
    overlap = group.sum((probabilities * target).sum(axes))
    total = group.sum(probabilities.square().sum(axes) + target.square().sum(axes))
    return 1 - ((2 * overlap + epsilon) / (total + epsilon)).mean()


def masked_dice_loss(probabilities: Tensor, target: Tensor, mask: Tensor, epsilon: float = 1e-5) -> Tensor:
    """1 - mean over samples and classes of (2 sum Mpg + e) / (sum M(p + g) + e) (DMASK).

    `probabilities` and `target` are (B, K, ...), `mask` broadcasts. A class absent from the masked region of a sample
    counts as missed unless its predicted mass there is about 0.
    """
    overlap = (mask * probabilities * target).sum(_AXES)
    total = (mask * (probabilities + target)).sum(_AXES)
    return 1 - ((2 * overlap + epsilon) / (total + epsilon)).mean()


def supervised_loss(logits: Tensor, labels: Tensor, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """Cross-entropy, mean over voxels, and squared Dice loss of exclusive classes."""
    probabilities = logits.softmax(dim=1)
    target = one_hot(labels, logits.shape[1])
    return F.cross_entropy(logits, labels), squared_dice_loss(probabilities, target, group=group)
