"""Whether two volumes lie on the same voxels."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fheat.io.volume import Volume

# Programs round headers differently; half a percent of a voxel is rounding, a whole percent is another grid.
SPACING_TOLERANCE: Final = 5e-3
ORIGIN_TOLERANCE: Final = 0.1  # millimetres
DIRECTION_TOLERANCE: Final = 1e-3  # of a unit vector


@dataclass(frozen=True)
class Difference:
    """The first thing two grids do not share, with both values in words."""

    field: str
    first: str
    second: str


def grid_difference(image: Volume, other: Volume) -> Difference | None:
    """Return the first difference of two grids (shape, spacing, origin, orientation), or None.

    Of a shape with channels only (X, Y, Z) counts for the first volume; the other has none.
    """
    shapes = image.data.shape[:3], other.data.shape
    if shapes[0] != shapes[1]:
        return Difference("shape", str(shapes[0]), str(shapes[1]))
    spacings = image.spacing, other.spacing
    if not np.allclose(*spacings, rtol=SPACING_TOLERANCE, atol=0):
        return Difference("spacing", *map(_numbers, spacings))
    if image.orientation != other.orientation:
        return Difference("orientation", image.orientation, other.orientation)
    directions = image.affine[:3, :3] / spacings[0], other.affine[:3, :3] / spacings[1]
    if not np.allclose(*directions, rtol=0, atol=DIRECTION_TOLERANCE):
        return Difference("orientation", *(_numbers(direction.T.ravel()) for direction in directions))
    origins = image.affine[:3, 3], other.affine[:3, 3]
    if not np.allclose(*origins, rtol=0, atol=ORIGIN_TOLERANCE):
        return Difference("origin", *map(_numbers, origins))
    return None


def _numbers(values: Any) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in values) + ")"
