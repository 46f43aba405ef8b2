"""Intensities to the range a network sees. Every function returns float32 and leaves its input alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def zscore(data: NDArray[Any], mean: float | None = None, std: float | None = None) -> Floats:
    """Return `(data - mean) / std`, by default with the mean and standard deviation of `data` itself.

    A standard deviation of zero divides nothing: constant data become zero. Mean 0 and standard deviation 1 change
    nothing.
    """
    middle = float(data.mean(dtype=np.float64)) if mean is None else mean
    spread = float(data.std(dtype=np.float64)) if std is None else std
    return ((data.astype(np.float64) - middle) / (spread or 1.0)).astype(np.float32)


def nonzero_statistics(data: NDArray[Any]) -> tuple[float, float]:
    """Return mean and standard deviation of the voxels that are not zero; (0, 1) where all are."""
    inside = data[data != 0]
    if inside.size == 0:
        return 0.0, 1.0
    return float(inside.mean(dtype=np.float64)), float(inside.std(dtype=np.float64))


def window(data: NDArray[Any], low: float, high: float) -> Floats:
    """Map `low` to 0 and `high` to 1, cutting what lies outside. The window [0, 1] keeps data within it."""
    if not low < high:
        raise ValueError(f"window [{low}, {high}] is empty")
    return ((data.astype(np.float64).clip(low, high) - low) / (high - low)).astype(np.float32)


def min_max(data: NDArray[Any]) -> Floats:
    """Map the least value to 0 and the greatest to 1; constant data become zero."""
    low, high = float(data.min()), float(data.max())
    return ((data.astype(np.float64) - low) / ((high - low) or 1.0)).astype(np.float32)


def clip_above(data: NDArray[Any], share: float) -> Floats:
    """Cut at the least value that at least `share` of all voxels do not exceed; a share of 1 cuts nothing."""
    if not 0 < share <= 1:
        raise ValueError(f"share {share} is not within (0, 1]")
    most = np.quantile(data, share, method="inverted_cdf")
    return np.asarray(np.minimum(data, most), dtype=np.float32)
