"""An image with its place in space."""

from dataclasses import dataclass
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

LARGEST_SPACING = 1000.0  # millimetres; no scanner steps a metre


@dataclass(frozen=True)
class Volume:
    """Voxels and the affine that maps their indices to millimetres (RAS+: right, anterior, superior).

    Shapes: `data` (X, Y, Z) or (X, Y, Z, C); `affine` (4, 4). A volume can only be built with a geometry that means
    something: finite, not singular, a spacing above zero.
    """

    data: NDArray[Any]
    affine: NDArray[np.float64]

    def __post_init__(self) -> None:
        reason = geometry_fault(self.affine)
        if reason is not None:
            raise ValueError(f"affine {reason}")
        if self.data.ndim not in (3, 4) or 0 in self.data.shape:
            raise ValueError(f"data has shape {self.data.shape}: a volume is (X, Y, Z) or (X, Y, Z, C), no axis empty")

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between neighbouring voxel centres along each axis."""
        x, y, z = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0))
        return float(x), float(y), float(z)

    @property
    def orientation(self) -> str:
        """Letters of the directions the axes point in, such as `RAS` or `LPI`."""
        return "".join(nibabel.aff2axcodes(self.affine))


def geometry_fault(affine: NDArray[np.float64]) -> str | None:
    """Say what is wrong with an affine, or None: shape, finite, spacing in (0, 1 m], axes not in one plane."""
    if affine.shape != (4, 4):
        return f"has shape {affine.shape}, not (4, 4)"
    if not np.isfinite(affine).all():
        return "holds NaN or infinity"
    if not np.array_equal(affine[3], [0, 0, 0, 1]):
        return f"has last row {affine[3].tolist()}, not [0, 0, 0, 1]"
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    if not (spacing > 0).all() or spacing.max() > LARGEST_SPACING:
        return f"has spacing {spacing.tolist()}, not within (0, {LARGEST_SPACING:g}] mm"
    if abs(np.linalg.det(affine[:3, :3] / spacing)) < 1e-3:
        return "is singular: two of its axes point the same way"
    return None
