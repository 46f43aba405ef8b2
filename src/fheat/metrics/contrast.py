"""How sharp an image is along the boundary of a region, and whether two regions differ in it.

    g(R) = mean of |grad I| over the band of R,    band = voxels of R with a face neighbour outside R

The gradient is by central differences, one-sided at the edge of the array, per millimetre with a spacing and per voxel
without. The band is one voxel thick and lies inside the region; what lies outside the array counts as outside. An
image without edges has g = 0, a ramp its slope, whatever the region.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.metrics.overlap import Mask
from fheat.metrics.significance import holm, signed_rank
from fheat.metrics.surface import bounding_box, surface

Gradients = Mapping[str, float | None]
"""Mean gradient along the boundary of each region; None for a region the case does not have."""


def gradient_magnitude(image: NDArray[Any], spacing: Sequence[float] | None = None) -> NDArray[np.float64]:
    """Return |grad I| of every voxel; an axis of one voxel has no gradient."""
    steps = [1.0] * image.ndim if spacing is None else [float(step) for step in spacing]
    if len(steps) != image.ndim:
        raise ValueError(f"spacing has {len(steps)} numbers for {image.ndim} axes")
    voxels = image.astype(np.float64)
    squares = np.zeros(image.shape)
    for axis, step in enumerate(steps):
        if image.shape[axis] > 1:
            squares += np.gradient(voxels, step, axis=axis) ** 2
    return np.sqrt(squares)


def boundary_gradient(image: NDArray[Any], region: Mask, spacing: Sequence[float] | None = None) -> float | None:
    """Return the mean gradient magnitude over the region's band, or None where the region is empty."""
    if image.shape != region.shape:
        raise ValueError(f"image {image.shape} and region {region.shape} differ in shape")
    if not region.any():
        return None
    # One voxel more on every side: the differences in the band are then those of the whole image.
    box = tuple(slice(max(part.start - 1, 0), part.stop + 1) for part in bounding_box(region))
    return float(gradient_magnitude(image[box], spacing)[surface(region[box])].mean())


@dataclass(frozen=True)
class Contrast:
    """Two regions in one modality over the cases that have both."""

    modality: str
    first: str
    second: str
    n: int
    first_mean: float | None
    second_mean: float | None
    ratio: float | None
    """Mean of the second over mean of the first."""
    p: float | None
    """Paired Wilcoxon signed-rank, see `fheat.metrics.significance.TEST`."""
    p_holm: float | None
    """p corrected for the number of modalities."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def contrasts(values: Mapping[str, Sequence[Gradients]], first: str, second: str) -> list[Contrast]:
    """Compare two regions, modality by modality; `values` holds the gradients of every case for each modality."""
    pairs = {modality: _both(cases, first, second) for modality, cases in values.items()}
    tests = {modality: signed_rank([b - a for a, b in found]) for modality, found in pairs.items()}
    corrected = iter(holm([p for p in tests.values() if p is not None]))
    rows = []
    for modality, p in tests.items():
        count = len(pairs[modality])
        if p is None:
            rows.append(Contrast(modality, first, second, 0, None, None, None, None, None))
            continue
        low, high = (fsum(column) / count for column in zip(*pairs[modality], strict=True))
        ratio = high / low if low else None
        rows.append(Contrast(modality, first, second, count, low, high, ratio, p, next(corrected)))
    return rows


def _both(cases: Sequence[Gradients], first: str, second: str) -> list[tuple[float, float]]:
    pairs = []
    for case in cases:
        a, b = case[first], case[second]
        if a is not None and b is not None:
            pairs.append((a, b))
    return pairs
