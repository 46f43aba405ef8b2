"""Where windows lie and how much each of their voxels counts."""

from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

import torch
from torch import Tensor

Triple = tuple[int, int, int]
Weights = Literal["constant", "gaussian"]


@dataclass(frozen=True)
class Windows:
    """Size and stride of a sliding window, in voxels of the grid the network works on."""

    size: Triple
    stride: Triple

    def __post_init__(self) -> None:
        if not all(0 < step <= length for step, length in zip(self.stride, self.size, strict=True)):
            raise ValueError(f"stride={self.stride} leaves gaps: use 1 to {self.size} voxels per axis")


PRESETS: Final = {
    "la": Windows((112, 112, 80), (18, 18, 4)),
    "pancreas": Windows((96, 96, 96), (16, 16, 4)),
    "pancreas-b": Windows((96, 96, 96), (16, 16, 16)),
    "brats": Windows((96, 96, 96), (64, 64, 64)),
}
"""Windows the semi-supervised papers test with; `pancreas-b` is MC-Net's and MLRP's."""


def starts(length: int, size: int, stride: int) -> list[int]:
    """Return first indices along one axis: every `stride` voxels, the last window moved back to end at the border.

    There are `ceil((length - size) / stride) + 1`; one, at 0, where the axis is no longer than the window.
    """
    reach = max(length - size, 0)
    return [min(stride * index, reach) for index in range(ceil(reach / stride) + 1)]


def window_weights(size: Triple, kind: Weights) -> Tensor:
    """Return how much each voxel of a window counts, shape `size`: 1, or a Gaussian around the centre.

    The Gaussian has a standard deviation of an eighth of the window and is kept above a thousandth of its largest
    value, so that every voxel has a weight (MONAI's definition).
    """
    if kind == "constant":
        return torch.ones(size)
    if kind != "gaussian":
        raise ValueError(f"weights={kind!r} is unknown: use 'constant' or 'gaussian'")
    weight = torch.ones(())
    for length in size:
        place = torch.arange(length, dtype=torch.float32) - (length - 1) / 2
        weight = weight.unsqueeze(-1) * torch.exp(-(place**2) / (2 * (length / 8) ** 2))
    return weight.clamp(min=max(float(weight.min()), 1e-3))
