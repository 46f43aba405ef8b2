"""What is read off the prediction on a weak view: labels, where they are trusted, and how sure each block is."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.ops import kernels
from fheat.ops.voxel_sums import MOST_CLASSES

BLOCK = 16
"""Voxels along each side of a block, which has one threshold."""


class WeakView(NamedTuple):
    """A prediction read voxel by voxel, (B, X, Y, Z), and block by block, (B, 1, x, y, z).

    label: uint8, the most likely class.
    accepted: bool, whether its probability reaches the threshold of its block.
    inside: bool, whether the background's probability is at most one half.
    foreground: uint8, the most likely class but the background.
    confidence: float32, mean over a block of the probability of `label`.
    """

    label: Tensor
    accepted: Tensor
    inside: Tensor
    foreground: Tensor
    confidence: Tensor


def read_weak(logits: Tensor, threshold: Tensor) -> WeakView:
    """Read logits (B, K, X, Y, Z), K up to 256, with thresholds (B, 1, x, y, z) of blocks of 16 voxels a side."""
    if any(length % BLOCK for length in logits.shape[2:]):
        raise ValueError(f"a grid of {tuple(logits.shape[2:])} does not divide into blocks of {BLOCK}")
    if kernels.usable(logits) and 2 <= logits.shape[1] <= MOST_CLASSES:
        from fheat.ops.kernels.losses import read_weak as fused  # Triton takes a second to import

        with kernels.on_device(logits):
            return WeakView(*fused(logits, threshold, BLOCK))
    logits = logits.float()
    p = logits.softmax(dim=1)
    confidence, label = p.max(dim=1, keepdim=True)
    return WeakView(
        label=label[:, 0].to(torch.uint8),
        accepted=(confidence >= spread(threshold))[:, 0],
        inside=p[:, 0] <= 0.5,
        foreground=(1 + logits[:, 1:].argmax(dim=1)).to(torch.uint8),
        confidence=F.avg_pool3d(confidence, BLOCK),
    )


def spread(blocks: Tensor) -> Tensor:
    """Repeat every block value over its voxels: (..., x, y, z) to (..., 16 x, 16 y, 16 z)."""
    for axis in (-3, -2, -1):
        blocks = blocks.repeat_interleave(BLOCK, dim=axis)
    return blocks
