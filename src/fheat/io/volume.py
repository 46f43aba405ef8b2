"""A volume: voxels with the affine that says where they lie; what both must be; and the comparison of two grids."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import nibabel
import numpy as np
from nibabel.spatialimages import SpatialImage
from numpy.typing import NDArray

from fheat.system.errors import BadInput

LARGEST_SPACING: Final = 1000.0
"""Largest distance of neighbouring voxels in millimetres; no scanner has more."""
MILLIMETRES: Final = {"unknown": 1.0, "mm": 1.0, "meter": 1000.0, "micron": 0.001}
"""Length in millimetres of the units that a NIfTI header may name."""


@dataclass(frozen=True)
class Volume:
    """Voxels and the affine that maps their indices to millimetres (RAS+: right, anterior, superior).

    Shapes: `data` (X, Y, Z) or (X, Y, Z, C); `affine` (4, 4). The constructor refuses an affine that is not finite, is
    singular, or has a spacing that is not above zero.

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
        """Letters of the directions in which the axes point, such as `RAS` or `LPI`."""
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
    """Return what is wrong with an affine (shape, NaN, spacing outside (0, 1 m], axes in one plane), or None."""
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


def corner_distance(first: NDArray[np.float64], second: NDArray[np.float64], shape: Sequence[int]) -> float:
    """Return the largest distance, along any axis of space, of the corners that two affines give a grid (X, Y, Z)."""
    corners = np.array(np.meshgrid(*((0, length - 1) for length in shape[:3]), [1])).reshape(4, -1)
    return float(np.abs((first - second) @ corners).max())


def as_voxels(content: bytearray, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return stored bytes, first axis fastest, as an array of the machine's own byte order, without a copy of them."""
    data: NDArray[Any] = np.frombuffer(content, kind).reshape(shape, order="F")
    return data if kind.isnative else data.byteswap(inplace=True).view(kind.newbyteorder("="))


def check_finite(path: Path, data: NDArray[Any]) -> None:
    """Raise `BadInput` where voxels are NaN or infinite."""
    if data.dtype.kind != "f" or np.isfinite(data.sum(dtype=np.float64)):
        return
    if count := int(np.count_nonzero(~np.isfinite(data))):
        raise BadInput(path, f"holds {count:,} voxels that are NaN or infinite", "replace them before using the file")


APART: Final = 0.05
"""Largest distance of corresponding corners, as a fraction of a voxel; programs round headers differently."""


@dataclass(frozen=True)
class Difference:
    """The property in which two grids differ, and both its values as text."""

    field: str
    first: str
    second: str


def grid_difference(image: Volume, other: Volume) -> Difference | None:
    """Return how two grids differ (shape, orientation, spacing or origin), or None where all voxels coincide.

    All voxels coincide if the corners of the grids do. The first volume may have channels, which are not compared; the
    other volume has none.
    """
    shapes = image.data.shape[:3], other.data.shape
    if shapes[0] != shapes[1]:
        return Difference("shape", str(shapes[0]), str(shapes[1]))
    if corner_distance(image.affine, other.affine, shapes[0]) <= APART * min(image.spacing):
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
