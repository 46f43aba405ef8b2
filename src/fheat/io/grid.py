"""Whether two volumes lie on the same voxels."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fheat.io.volume import Volume

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
