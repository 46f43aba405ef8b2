"""Where the windows of a sliding window lie, and how much each of their voxels counts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from math import gcd, prod
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Triple = tuple[int, int, int]
Weights = Literal["constant", "gaussian"]
_LARGEST_THINNING: Final = 7
"""Thinned windows are at least every seventh of all."""
_MOST_THINNED: Final = 2**20
"""Largest number of windows that are listed to choose some of them; a body of 2 m at 1 mm has 250,000 of la's."""
_LARGEST_UNSEEN: Final = 0.1
"""Largest share of the voxels that thinned windows may leave uncovered."""


@dataclass(frozen=True)
class Windows:
    """Size and stride of a sliding window, in voxels of the grid the network works on.

    With `thinned` only a part of the windows is visited, see `every`. How many windows a volume has is arithmetic, and
    they are listed one plane at a time, so that a volume of any size can be asked about.
    """

    size: Triple
    stride: Triple
    thinned: bool = False

    def __post_init__(self) -> None:
        if not all(0 < step <= length for step, length in zip(self.stride, self.size, strict=True)):
            raise ValueError(f"stride={self.stride} leaves gaps: use 1 to {self.size} voxels per axis")

    def fast(self) -> "Windows":
        """Return the same windows, thinned."""
        return replace(self, thinned=True)

    def every(self, shape: Triple) -> int:
        """Return n where every n-th window of a volume is visited, in order; 1 unless thinned.

        n is at most 7. As it shares no divisor with the number of windows on the inner axes, all their places take
        their turn, and the average over few windows is near that over all. n is the largest that leaves no plane and at
        most a tenth of the voxels uncovered; where there is none, all windows are visited. Voxels that stay uncovered
        lie at the edges of the volume, where few windows reach.
        """
        if not self.thinned:
            return 1
        counts = self._counts(shape)
        if prod(counts) > _MOST_THINNED:
            raise ValueError(f"{prod(counts):,} windows are too many to thin, over {_MOST_THINNED:,}: use all of them")
        windows = self._all(shape)
        for step in range(_LARGEST_THINNING, 1, -1):
            some = windows[step // 2 :: step]
            if gcd(step, prod(counts[1:])) == 1 and some and _reaches(some, self.size, shape):
                return step
        return 1

    def count(self, shape: Triple) -> int:
        """Return the number of windows of a volume that are visited, without listing them."""
        step = self.every(shape)
        return (prod(self._counts(shape)) - step // 2 + step - 1) // step

    def corners(self, shape: Triple) -> list[Triple]:
        """Return the first voxel of every window of a volume that is visited, in order."""
        step = self.every(shape)
        return self._all(shape)[step // 2 :: step]

    def planes(self, shape: Triple, axis: int) -> Iterator[tuple[int, list[Triple]]]:
        """Yield each first plane of windows along an axis and the corners of the windows that begin there, in order."""
        step, (_, along_y, along_z) = self.every(shape), self._counts(shape)
        axes = [(shape[other], self.size[other], self.stride[other]) for other in range(3)]
        for index, first in enumerate(starts(*axes[axis])):
            places = [[(index, first)] if other == axis else enumerate(starts(*axes[other])) for other in range(3)]
            corners = [
                (x, y, z)
                for (i, x), (j, y), (k, z) in product(*places)
                if ((i * along_y + j) * along_z + k) % step == step // 2
            ]
            if corners:
                yield first, corners

    def unseen(self, shape: Triple) -> float:
        """Return the share of the voxels that no window covers; they become background. All windows cover all."""
        return _unseen(self.corners(shape), self.size, shape)[0] if self.every(shape) > 1 else 0.0

    def _counts(self, shape: Triple) -> list[int]:
        axes = zip(shape, self.size, self.stride, strict=True)
        return [-(-max(length - size, 0) // stride) + 1 for length, size, stride in axes]

    def _all(self, shape: Triple) -> list[Triple]:
        along_x, along_y, along_z = (list(starts(*axis)) for axis in zip(shape, self.size, self.stride, strict=True))
        return [(x, y, z) for x in along_x for y in along_y for z in along_z]


PRESETS: Final = {
    "la": Windows((112, 112, 80), (18, 18, 4)),
    "pancreas": Windows((96, 96, 96), (16, 16, 4)),
    "pancreas-b": Windows((96, 96, 96), (16, 16, 16)),
    "brats": Windows((96, 96, 96), (64, 64, 64)),
}
"""Windows that the semi-supervised papers test with; `pancreas-b` is that of MC-Net and MLRP."""


def starts(length: int, size: int, stride: int) -> Iterator[int]:
    """Yield first indices along one axis: every `stride` voxels, the last window moved back to end at the border.

    There are `ceil((length - size) / stride) + 1`; one, at 0, where the axis is no longer than the window.
    """
    reach = max(length - size, 0)
    return chain(range(0, reach, stride), [reach])


def _reaches(corners: list[Triple], size: Triple, shape: Triple) -> bool:
    share, plane = _unseen(corners, size, shape)
    return share <= _LARGEST_UNSEEN and plane < 1 - 1e-9


def _unseen(corners: list[Triple], size: Triple, shape: Triple) -> tuple[float, float]:
    """Return the share of the voxels outside all windows, and the largest such share of a plane along any axis.

    Windows cut every axis into pieces; within a block of three pieces all voxels lie in the same windows.
    """
    first = np.array(corners)
    ends = np.minimum(np.array([first, first + size]), shape)
    cuts = [np.unique([0, length, *ends[:, :, axis].ravel()]) for axis, length in enumerate(shape)]
    count = np.zeros([len(cut) for cut in cuts], dtype=np.int64)
    for sides in product((0, 1), repeat=3):
        places = tuple(np.searchsorted(cuts[axis], ends[side, :, axis]) for axis, side in enumerate(sides))
        np.add.at(count, places, (-1) ** sum(sides))
    missed = (count.cumsum(0).cumsum(1).cumsum(2) == 0)[:-1, :-1, :-1].astype(np.float64)
    lengths = [np.diff(cut) / shape[axis] for axis, cut in enumerate(cuts)]
    planes = [np.einsum("abc,b,c->a", np.moveaxis(missed, axis, 0), *_others(lengths, axis)) for axis in range(3)]
    return float(planes[0] @ lengths[0]), float(max(plane.max() for plane in planes))


def _others(values: list[NDArray[np.float64]], axis: int) -> list[NDArray[np.float64]]:
    return values[:axis] + values[axis + 1 :]


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
