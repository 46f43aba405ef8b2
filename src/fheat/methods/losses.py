"""Losses of the methods: small formulas on sums over the voxels of a batch. Targets are labels and get no gradient.

Sums are those of `fheat.ops.voxel_sums`: per sample, region and class, (B, R, K).
"""

from torch import Tensor

from fheat.ops.voxel_sums import VoxelSums, voxel_sums
from fheat.system import processes


def squared_dice_loss(overlap: Tensor, total: Tensor, epsilon: float = 1e-10) -> Tensor:
    """Return 1 - (2 sum pg + e) / (sum p^2 + sum g^2 + e), sums over the whole batch, mean over classes (DSQ2).

    `overlap`, sum pg, and `total`, sum p^2 + sum g^2, are (K,), those of this process; the batch is that of all
    processes together. A perfect prediction gives 0.
    """
    group = processes.current()
    return 1 - ((2 * group.sum(overlap) + epsilon) / (group.sum(total) + epsilon)).mean()


def masked_dice_loss(sums: VoxelSums, epsilon: float = 1e-5) -> Tensor:
    """Return 1 - mean over samples and classes of (2 sum pg + e) / (sum (p + g) + e), for each region, (R,) (DMASK).

    A class absent from the region of a sample counts as missed unless its predicted mass there is about 0.
    """
    return 1 - ((2 * sums.overlap + epsilon) / (sums.mass + sums.voxels + epsilon)).mean(dim=(0, 2))


def supervised_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return cross-entropy, mean over voxels, and squared Dice loss of exclusive classes.

    Shapes: logits (B, K, X, Y, Z), labels (B, X, Y, Z) whole numbers in [0, K).
    """
    return supervised_terms(voxel_sums(logits, labels))


def supervised_terms(sums: VoxelSums) -> tuple[Tensor, Tensor]:
    """Return cross-entropy, mean over the voxels of all regions, and squared Dice loss over these."""
    overlap, total = sums.overlap.sum(dim=(0, 1)), (sums.squares + sums.voxels).sum(dim=(0, 1))
    return sums.entropy.sum() / sums.voxels.sum(), squared_dice_loss(overlap, total)


def half_supervised_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (CE + squared Dice loss of the classes but the background) / 2, as UA-MT has it (DSQ1).

    Shapes as in `supervised_loss`. A perfect prediction gives 0.
    """
    sums = voxel_sums(logits, labels)
    return (sums.entropy.sum() / sums.voxels.sum() + squared_foreground_dice(sums)) / 2


def squared_foreground_dice(sums: VoxelSums) -> Tensor:
    """Return the squared Dice loss of the classes but the background, over all regions (DSQ1)."""
    overlap, total = sums.overlap.sum(dim=(0, 1)), (sums.squares + sums.voxels).sum(dim=(0, 1))
    return squared_dice_loss(overlap[1:], total[1:], epsilon=1e-5)


def linear_foreground_dice(sums: VoxelSums) -> Tensor:
    """Return 1 - (2 sum pg + e) / (sum p + sum g + e), batch-wide, mean over the classes but the background (DLIN1)."""
    overlap, total = sums.overlap.sum(dim=(0, 1)), (sums.mass + sums.voxels).sum(dim=(0, 1))
    return squared_dice_loss(overlap[1:], total[1:], epsilon=1e-8)  # the same quotient, of another total


def mixture_loss(sums: VoxelSums, pseudo_weight: float = 0.5) -> Tensor:
    """Return half of Dice plus cross-entropy: of region 0, which has labels, and with its own weight of region 1, which
    has pseudo-labels.
    """
    entropy = sums.entropy.sum(dim=0) / (sums.voxels.sum(dim=(0, 2)) + 1e-16)
    labelled, pseudo = (masked_dice_loss(sums) + entropy).unbind()
    return (labelled + pseudo_weight * pseudo) / 2
