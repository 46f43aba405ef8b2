"""Where the windows of a sliding window lie, and how much each of their voxels counts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from math import gcd, prod
from typing import Final, Literal

import torch
from torch import Tensor

Triple = tuple[int, int, int]
Weights = Literal["constant", "gaussian"]
Choice = Literal["all", "fast"]
LARGEST_BATCH: Final = 2**16
"""Largest number of windows of a forward pass; a larger one was not meant."""
_LARGEST_THINNING: Final = 7
"""Fast windows are at least every seventh of all."""
_DENSE: Final = 3
"""Number of windows along every axis from which on fast ones are a third of all."""
_MOST_THINNED: Final = 2**20
"""Largest number of windows that are listed to choose some of them; a body of 2 m at 1 mm has 250,000 of la's."""


@dataclass(frozen=True)
class Windows:
    """Size and stride of a sliding window, in voxels of the grid the network works on.

    How many windows a volume has is arithmetic, and they are listed one plane at a time, so that a volume of any size
    can be asked about. Whatever the choice among them, every voxel lies in at least one that is visited:

    - `all` visits all of them;
    - `fast` visits a third of them or less, see `thinning`, and the fewest windows that cover the volume, see
      `covering`, which count only where there is no other, see `filling`.
    """

    size: Triple
    stride: Triple
    choice: Choice = "all"

    def __post_init__(self) -> None:
        if not all(0 < step <= length for step, length in zip(self.stride, self.size, strict=True)):
            raise ValueError(f"stride={self.stride} leaves gaps: use 1 to {self.size} voxels per axis")

    def fast(self) -> "Windows":
        """Return a third of these windows or less, and those that it takes to cover the volume."""
        return replace(self, choice="fast")

    def thinning(self, shape: Triple) -> tuple[Triple, int, int] | None:
        """Return factors (a, b, c), n and r: window (i, j, k) is visited where a i + b j + c k leaves r, divided by n.

        None where all windows are visited. Where there are three or more along every axis, it is a third of them, those
        with i + j + k divisible by 3: one of three neighbours along each axis. Elsewhere it is every n-th in order,
        with the largest n up to 7 that shares no divisor with the number of windows on the inner axes. Either way all
        places along an axis take their turn, and the average over few windows is near that over all.
        """
        if self.choice != "fast":
            return None
        counts = self._counts(shape)
        if prod(counts) > _MOST_THINNED:
            raise ValueError(f"{prod(counts):,} windows are too many to thin, over {_MOST_THINNED:,}: use all of them")
        if min(counts) >= _DENSE:
            return (1, 1, 1), _DENSE, 0
        step = next(step for step in range(_LARGEST_THINNING, 0, -1) if gcd(step, prod(counts[1:])) == 1)
        return None if step == 1 else ((counts[1] * counts[2], counts[2], 1), step, step // 2)

    def count(self, shape: Triple) -> int:
        """Return the number of windows of a volume that are visited; all of them are counted, not listed."""
        return prod(self._counts(shape)) if self.thinning(shape) is None else len(self.corners(shape))

    def corners(self, shape: Triple) -> list[Triple]:
        """Return the first voxel of every window of a volume that is visited, in order."""
        return list(chain.from_iterable(corners for _, corners in self.planes(shape, 0)))

    def planes(self, shape: Triple, axis: int) -> Iterator[tuple[int, list[Triple]]]:
        """Yield each first plane of windows along an axis and the corners of the windows that begin there, in order."""
        (a, b, c), step, rest = self.thinning(shape) or ((0, 0, 0), 1, 0)
        axes = list(zip(shape, self.size, self.stride, strict=True))
        cover = [set(covering(*one)) for one in axes] if step > 1 else []
        for index, first in enumerate(starts(*axes[axis])):
            places = [[(index, first)] if other == axis else enumerate(starts(*axes[other])) for other in range(3)]
            corners = [
                (x, y, z)
                for (i, x), (j, y), (k, z) in product(*places)
                if (a * i + b * j + c * k) % step == rest or (x in cover[0] and y in cover[1] and z in cover[2])
            ]
            if corners:
                yield first, corners

    def filling(self, shape: Triple) -> Callable[[Triple], bool]:
        """Return a function from the corner of a window to whether it counts only where there is no other window.

        These are the fast windows that are visited to cover the volume and are none of `thinning`. Where there are less
        than half as many of the latter, all count alike.
        """
        factors, step, rest = self.thinning(shape) or ((0, 0, 0), 1, 0)
        cover = [list(covering(*axis)) for axis in zip(shape, self.size, self.stride, strict=True)]
        if step == 1 or prod(map(len, cover)) > 2 * prod(self._counts(shape)) // step:
            return lambda corner: False

        def fills(corner: Triple) -> bool:
            places = (-(-start // stride) for start, stride in zip(corner, self.stride, strict=True))
            return sum(factor * place for factor, place in zip(factors, places, strict=True)) % step != rest

        return fills

    def _counts(self, shape: Triple) -> list[int]:
        axes = zip(shape, self.size, self.stride, strict=True)
        return [-(-max(length - size, 0) // stride) + 1 for length, size, stride in axes]


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


def covering(length: int, size: int, stride: int) -> Iterator[int]:
    """Yield the fewest of `starts`, from the first to the last, whose windows cover the axis."""
    first, reach = 0, max(length - size, 0)
    while first + size < reach:
        yield first
        first += size // stride * stride
    yield from sorted({first, reach})


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
