"""Distances between the surfaces of two binary masks.

A surface voxel is one whose six neighbours are not all inside; what lies outside the array counts as background. For
every surface voxel of one mask, the distance to the nearest surface voxel of the other, between centres.

These are medpy's definitions, which the semi-supervised literature prints; the numbers are the same. The way is
another: only surfaces are looked at, through a k-d tree, instead of a distance transform of the whole volume.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fheat.metrics.overlap import Mask

Distances = NDArray[np.float64]


@dataclass(frozen=True)
class SurfaceDistances:
    """Directed distances of two non-empty masks, in the unit of the spacing."""

    to_reference: Distances
    """From every surface voxel of the prediction."""
    to_prediction: Distances
    """From every surface voxel of the reference."""

    @property
    def hd95(self) -> float:
        """95th percentile of both directions pooled: medpy's, what the papers print."""
        return float(np.percentile(np.concatenate([self.to_reference, self.to_prediction]), 95))

    @property
    def hd95_max(self) -> float:
        """The larger of the two directed 95th percentiles: MONAI's, the stricter reading."""
        return float(max(np.percentile(self.to_reference, 95), np.percentile(self.to_prediction, 95)))

    @property
    def asd(self) -> float:
        """Mean distance from the prediction only, as medpy's `asd`: what was missed does not count."""
        return float(self.to_reference.mean())

    @property
    def assd(self) -> float:
        """Mean of both directions pooled, as `assd` of medpy 0.5; medpy 0.4 took the mean of the two means."""
        return float(np.concatenate([self.to_reference, self.to_prediction]).mean())

    def surface_dice(self, tolerance: float) -> float:
        """Share of all surface voxels, of both masks, that lie within `tolerance` of the other surface."""
        near = np.count_nonzero(self.to_reference <= tolerance) + np.count_nonzero(self.to_prediction <= tolerance)
        return near / (self.to_reference.size + self.to_prediction.size)


def surface_distances(prediction: Mask, reference: Mask, spacing: Sequence[float]) -> SurfaceDistances:
    """Return the distances between two non-empty masks of one shape; `spacing` has one number per axis."""
    box = bounding_box(prediction | reference)  # outside it both are background, so nothing changes
    points = [
        np.argwhere(surface(mask[box])) * np.asarray(spacing, dtype=np.float64) for mask in (prediction, reference)
    ]
    trees = [cKDTree(cloud, balanced_tree=False, compact_nodes=False) for cloud in points]
    to_reference, _ = trees[1].query(points[0], workers=-1)
    to_prediction, _ = trees[0].query(points[1], workers=-1)
    return SurfaceDistances(to_reference, to_prediction)


def surface(mask: Mask) -> Mask:
    """Return the voxels of the mask that have a neighbour outside it along some axis."""
    inner = mask.copy()
    for axis in range(mask.ndim):
        inside, here = np.moveaxis(inner, axis, 0), np.moveaxis(mask, axis, 0)
        inside[1:] &= here[:-1]
        inside[:-1] &= here[1:]
        inside[[0, -1]] = False
    return mask & ~inner


def bounding_box(mask: Mask) -> tuple[slice, ...]:
    """Return the smallest box that holds every voxel of a mask that is not empty."""
    box = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        hit = np.flatnonzero(mask.any(axis=others))
        box.append(slice(int(hit[0]), int(hit[-1]) + 1))
    return tuple(box)
