"""Volumes plane by plane, and how many planes are worked on at a time, so that memory follows the plane."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_VALUES_AT_ONCE: Final = 2**20
"""Number of float32 values of planes that are read or handed on together: 4 MiB."""
_LEAST_AT_ONCE: Final = 8
"""Least number of planes that are read together: where they lie across the memory, it comes in lines of 64 bytes."""


def planes_within(values: int, shape: Sequence[int], axis: int) -> int:
    """Return how many planes of a grid hold at most so many values, at least one.

    >>> planes_within(1000, (10, 20, 30), 0), planes_within(100, (10, 20, 30), 0)
    (1, 1)
    >>> planes_within(1000, (10, 20, 30), 2)
    5
    """
    return max(values * shape[axis] // max(prod(shape), 1), 1)


def planes_at_once(shape: Sequence[int], axis: int, channels: int, stored: Sequence[int] | None = None) -> int:
    """Return how many planes of a volume are read from the scan, or brought back to it, together.

    They hold 2^20 values, or they are 8 planes where that is more. Both are counted on the larger of two grids, that of
    the network, `shape`, and that of the `stored` scan: its planes are in memory, too.

    >>> planes_at_once((192, 142, 88), 0, 2), planes_at_once((512, 512, 300), 2, 2)
    (41, 8)
    >>> planes_at_once((119, 119, 200), 2, 25, stored=(512, 512, 600))
    2
    """
    larger = list(map(max, shape, shape if stored is None else stored))
    planes = max(planes_within(_VALUES_AT_ONCE // channels, larger, axis), _LEAST_AT_ONCE)
    return max(planes * shape[axis] // larger[axis], 1)


def slowest_axis(voxels: NDArray[Any]) -> int:
    """Return the axis whose neighbours lie farthest apart in memory: plane after plane along it, memory is read once.

    It is the last one of a volume as NIfTI stores it, and the first one of most arrays.
    """
    return int(np.argmax(np.abs(voxels.strides)))
