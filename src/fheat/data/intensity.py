"""Maps from stored intensities to the range a network sees, and the statistics some of them need.

Every map returns float32, is computed in float64 and leaves its input alone.
"""

from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Moments = tuple[float, float]
"""Mean and population standard deviation."""
VOXELS_IN_FLOAT64: Final = 2**16
"""Number of voxels that are held in float64 at a time, while their intensities are mapped or added up."""


def moments(data: NDArray[Any], *, nonzero: bool = False) -> Moments:
    """Return mean and standard deviation of the voxels, or of those that are not zero; (0, 1) where there are none.

    Bit for bit those of `data.mean(dtype=float64)` and `data.std(dtype=float64)`, without the float64 copy of all
    voxels that `std` makes.
    """
    voxels = data[data != 0] if nonzero else data.ravel(order="K")
    if voxels.size == 0:
        return 0.0, 1.0
    mean = float((voxels if nonzero else data).mean(dtype=np.float64))
    return mean, sqrt(_squares(voxels, mean) / voxels.size)


def _squares(voxels: NDArray[Any], mean: float) -> float:
    """Return the sum of `(x - mean)^2`, halved and added up as numpy's pairwise sum over the whole would be."""
    if voxels.size <= VOXELS_IN_FLOAT64:
        differences = voxels - np.float64(mean)
        differences *= differences
        return float(differences.sum())
    half = voxels.size // 2
    half -= half % 8
    return _squares(voxels[:half], mean) + _squares(voxels[half:], mean)


def zscore(data: NDArray[Any], mean: float | None = None, std: float | None = None) -> Floats:
    """Return `(data - mean) / std`, by default with the mean and standard deviation of `data` itself.

    A standard deviation of zero divides nothing: constant data become zero. Mean 0 and standard deviation 1 change
    nothing.
    """
    if mean is None or std is None:
        own = moments(data)
        mean, std = own[0] if mean is None else mean, own[1] if std is None else std
    scores: NDArray[np.float64] = np.subtract(data, mean, dtype=np.float64)
    scores /= std or 1.0
    return scores.astype(np.float32)


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
