"""What voxels and affines must look like in every format, and the comparison of what was read with them."""

from typing import Any

import numpy as np

from tests.attack.kinds import Verdict, contradiction, doubtful

LARGEST_SPACING = 1000.0
"""Millimetres beyond which no reader may believe a distance of voxels."""
USUAL_SPACING = (0.01, 50.0)
"""Millimetres between which every reader must believe it; outside it may refuse."""
USUAL_EXTENT = 2000.0
"""Millimetres of the largest side of a scan that every reader must believe."""


def judge_affine(affine: np.ndarray, shape: tuple[int, ...]) -> Verdict | None:
    """Return the verdict on an affine to RAS millimetres that cannot be, or need not be, believed; else None."""
    if not np.isfinite(affine).all():
        return contradiction("the affine is not finite")
    with np.errstate(over="ignore"):
        spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    if not (spacing > 0).all() or not (spacing <= LARGEST_SPACING * 1.001).all():
        return contradiction(f"the spacing is {spacing.tolist()} mm")
    volume = abs(np.linalg.det(affine[:3, :3] / spacing))
    if volume < 0.0009:
        return contradiction("the affine is singular")
    extent = spacing * np.array(shape[:3])
    if volume < 0.1 or spacing.min() < USUAL_SPACING[0] or spacing.max() > USUAL_SPACING[1]:
        return doubtful("the affine is unusual")
    if extent.max() > USUAL_EXTENT or np.abs(affine[:3, 3]).max() > 1e5:
        return doubtful("the scan is unusually large or far away")
    return None


def agrees(found: Any, expected: tuple[np.ndarray, np.ndarray]) -> bool:
    """Return whether a `Volume` has these voxels and this affine, up to rounding of scaled values."""
    voxels, affine = expected
    if found.data.shape != voxels.shape or not np.allclose(found.affine, affine, rtol=1e-5, atol=1e-5):
        return False
    if voxels.dtype.kind in "iu":
        return bool(found.data.dtype.kind in "iu" and np.array_equal(found.data, voxels))
    span = float(np.abs(voxels).max(initial=0.0))
    return bool(np.allclose(found.data, voxels, rtol=1e-5, atol=max(1e-6 * span, 1e-37)))
