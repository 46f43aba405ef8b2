"""An image with its place in space."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import nibabel
import numpy as np
from nibabel.spatialimages import SpatialImage
from numpy.typing import NDArray

LARGEST_SPACING: Final = 1000.0
"""Largest spacing in millimetres; no scanner steps a metre."""
MILLIMETRES: Final = {"unknown": 1.0, "mm": 1.0, "meter": 1000.0, "micron": 0.001}
"""Length of the units that a NIfTI header may name."""


@dataclass(frozen=True)
class Volume:
    """Voxels and the affine that maps their indices to millimetres (RAS+: right, anterior, superior).

    Shapes: `data` (X, Y, Z) or (X, Y, Z, C); `affine` (4, 4). A volume can only be built with a geometry that means
    something: finite, not singular, a spacing above zero.

    >>> volume = Volume(np.zeros((4, 5, 6), np.uint8), np.diag([-0.5, 0.5, 2.0, 1.0]))
    >>> volume.spacing, volume.orientation
    ((0.5, 0.5, 2.0), 'LAS')
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

    @classmethod
    def from_nibabel(cls, image: SpatialImage) -> Self:
        """Return the voxels and the affine of a nibabel image; trailing axes of length one are dropped.

        Values are scaled as the header asks, and metres and micrometres become millimetres.
        """
        data = np.asanyarray(image.dataobj)
        while data.ndim > 3 and data.shape[-1] == 1:
            data = data[..., 0]
        units = getattr(image.header, "get_xyzt_units", None)
        unit = 1.0 if units is None else MILLIMETRES[units()[0]]
        return cls(data, np.diag([unit, unit, unit, 1.0]) @ np.asarray(image.affine, dtype=np.float64))

    def save(self, path: str | Path) -> None:
        """Write `.nii` or `.nii.gz` with this affine; an older file is replaced only once the new one is complete."""
        from fheat.io.nifti import write_nifti  # which reads and writes volumes

        write_nifti(self, path)


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


APART: Final = 0.05
"""Share of a voxel by which corresponding corners may lie apart: programs round headers differently."""


@dataclass(frozen=True)
class Difference:
    """What two grids do not share, with both values in words."""

    field: str
    first: str
    second: str


def grid_difference(image: Volume, other: Volume) -> Difference | None:
    """Return how two grids differ (shape, orientation, spacing or origin), or None where all voxels coincide.

    Voxels coincide where the corners do. Of a shape with channels only (X, Y, Z) counts for the first volume; the
    other has none.
    """
    shapes = image.data.shape[:3], other.data.shape
    if shapes[0] != shapes[1]:
        return Difference("shape", str(shapes[0]), str(shapes[1]))
    corners = np.array(np.meshgrid(*((0, length - 1) for length in shapes[0]), [1])).reshape(4, -1)
    if np.abs((image.affine - other.affine) @ corners).max() <= APART * min(image.spacing):
        return None
    if image.orientation != other.orientation:
        return Difference("orientation", image.orientation, other.orientation)
    spacings = np.array(image.spacing), np.array(other.spacing)
    reach = np.array(shapes[0])
    turned = np.abs(image.affine[:3, :3] / spacings[0] - other.affine[:3, :3] / spacings[1]) * spacings[0] * reach
    share = {
        "spacing": float((np.abs(spacings[0] - spacings[1]) * reach).max()),
        "orientation": float(turned.max()),
        "origin": float(np.abs(image.affine[:3, 3] - other.affine[:3, 3]).max()),
    }
    values = {
        "spacing": spacings,
        "orientation": tuple((volume.affine[:3, :3] / volume.spacing).T.ravel() for volume in (image, other)),
        "origin": (image.affine[:3, 3], other.affine[:3, 3]),
    }
    field = max(share, key=share.__getitem__)
    return Difference(field, *map(_numbers, values[field]))


def _numbers(values: Any) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in values) + ")"
