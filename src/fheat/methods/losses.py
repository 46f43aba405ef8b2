"""Losses of the protocols, small formulas on sums over the voxels of a batch. Targets are labels, never gradients.

Sums are those of `fheat.ops.voxel_sums`: per sample, region and class, (B, R, K).
"""

from torch import Tensor

from fheat.ops.voxel_sums import VoxelSums, voxel_sums
from fheat.system.processes import ALONE, Group


def squared_dice_loss(overlap: Tensor, total: Tensor, epsilon: float = 1e-10, *, group: Group = ALONE) -> Tensor:
    """1 - (2 sum pg + e) / (sum p^2 + sum g^2 + e), sums over the whole batch, mean over classes (DSQ2).

    `overlap`, sum pg, and `total`, sum p^2 + sum g^2, are (K,), those of this process; the batch is that of the whole
    group. A perfect prediction gives 0.
    """
    return 1 - ((2 * group.sum(overlap) + epsilon) / (group.sum(total) + epsilon)).mean()


def masked_dice_loss(sums: VoxelSums, epsilon: float = 1e-5) -> Tensor:
    """1 - mean over samples and classes of (2 sum pg + e) / (sum (p + g) + e), for each region, (R,) (DMASK).

    A class absent from the region of a sample counts as missed unless its predicted mass there is about 0.
    """
    return 1 - ((2 * sums.overlap + epsilon) / (sums.mass + sums.voxels + epsilon)).mean(dim=(0, 2))


def supervised_loss(logits: Tensor, labels: Tensor, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """Cross-entropy, mean over voxels, and squared Dice loss of exclusive classes.

    Shapes: logits (B, K, X, Y, Z), labels (B, X, Y, Z) whole numbers in [0, K).
    """
    return supervised_terms(voxel_sums(logits, labels), group)


def supervised_terms(sums: VoxelSums, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """Cross-entropy, mean over the voxels of all regions, and squared Dice loss over these."""
    overlap, total = sums.overlap.sum(dim=(0, 1)), (sums.squares + sums.voxels).sum(dim=(0, 1))
    return sums.entropy.sum() / sums.voxels.sum(), squared_dice_loss(overlap, total, group=group)


def mixture_loss(sums: VoxelSums) -> Tensor:
    """Half of Dice plus cross-entropy: in region 0, which has labels, and with half the weight in region 1, which has
    pseudo-labels.
    """
    entropy = sums.entropy.sum(dim=0) / (sums.voxels.sum(dim=(0, 2)) + 1e-16)
    labelled, pseudo = (masked_dice_loss(sums) + entropy).unbind()
    return (labelled + 0.5 * pseudo) / 2
