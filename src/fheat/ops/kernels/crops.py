"""Crops of an iteration, gathered and augmented by one kernel. The plain twin is in `fheat.training.batches`."""

from typing import NamedTuple

import torch
from torch import Tensor

from fheat.ops.kernels.device import crops as device

_BLOCK = 1024
"""Number of voxels that a program copies."""


class Stored(NamedTuple):
    """Volumes as `fheat.data.store.VolumeStore` keeps them.

    voxels: (C, total), values in float32, or codes into `tables`, (cases, C, 256), which is empty for values.
    labels: (total,) uint8.
    low, high: (cases, C).
    """

    voxels: Tensor
    tables: Tensor
    labels: Tensor
    low: Tensor
    high: Tensor


def gather_crops(
    stored: Stored, walks: Tensor, iteration: Tensor, patch: tuple[int, int, int], labelled: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the crops that a row of `walks`, (iterations, B, 5) int64, describes; its number is a tensor.

    Images (B, C, *patch) float32, labels (labelled, *patch) int64 of the first crops, and the extremes of the volume of
    each crop, twice (B, C).
    """
    channels, batch, where = len(stored.voxels), walks.shape[1], walks.device
    images = torch.empty(batch, channels, *patch, device=where)
    labels = torch.empty(labelled, *patch, dtype=torch.int64, device=where)
    low, high = (torch.empty(batch, channels, device=where) for _ in range(2))
    coded = stored.tables.numel() > 0
    voxels = patch[0] * patch[1] * patch[2]
    device.gather_crops[-(-voxels // _BLOCK), batch](
        iteration, walks, stored.voxels, stored.tables if coded else stored.low, stored.labels, stored.low, stored.high,
        images, labels, low, high, stored.voxels.shape[1], labelled,
        *patch, C=channels, CODED=coded, BLOCK=_BLOCK,
    )  # fmt: skip
    return images, labels, low, high
