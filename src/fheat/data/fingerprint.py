"""The fingerprint of a dataset: what spacing, size and intensities its training scans have, in the terms of nnU-Net."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Spacing
from fheat.data.grid import Size, common_grid, size_on
from fheat.data.orientation import reorient
from fheat.data.preprocessing import Preprocessing
from fheat.io.volume import Volume

VOXELS: Final = 5000
"""Largest number of foreground voxels of a scan that its intensities are measured on, evenly spaced among all."""
AIR: Final = -500.0
"""Intensity that CT goes below, since air has -1000 HU, and that the foreground of other images does not have."""
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Intensities:
    """Stored intensities of one channel inside the labels, over all labelled training scans."""

    mean: float
    median: float
    std: float
    min: float
    max: float
    percentile_00_5: float
    percentile_99_5: float

    @classmethod
    def of(cls, voxels: NDArray[Any]) -> "Intensities":
        """Measure voxels, of which there is at least one."""
        values = voxels.astype(np.float64)
        low, median, high = np.percentile(values, (0.5, 50, 99.5))
        numbers = values.mean(), median, values.std(), values.min(), values.max(), low, high
        return cls(*(float(f"{number:.6g}") for number in numbers))


@dataclass(frozen=True)
class Fingerprint:
    """Spacing, shape and intensities of the training scans, and the grid that a run would bring them to."""

    spacings: tuple[Spacing, ...]
    """Stored spacings in millimetres along the axes of the grid, scan by scan."""
    shapes: tuple[Size, ...]
    """Stored numbers of voxels along the axes of the grid, scan by scan."""
    sizes: tuple[Size, ...]
    """Numbers of voxels on the grid."""
    grid: Preprocessing
    foreground: tuple[Intensities, ...] = ()
    """Intensities inside the labels by channel; empty where no label has any voxel."""
    lowest: float = 0.0
    """Lowest stored intensity of the scans that were looked at."""

    @classmethod
    def of(
        cls,
        outlines: Sequence[Volume],
        samples: Iterable[Floats],
        lowest: float,
        wanted: Preprocessing | None = None,
        grid: Preprocessing | None = None,
    ) -> "Fingerprint":
        """Return the fingerprint of scans: their grids, and what `foreground` gives for those with a label.

        The grid is the one that a run would choose for them with the preprocessing `wanted`, unless it is given.
        """
        grid = grid or common_grid(outlines, wanted or Preprocessing())
        turned = [reorient(outline, str(grid.orientation)) for outline in outlines]
        inside = [sample for sample in samples if sample.shape[1]]
        same = [sample for sample in inside if len(sample) == len(inside[0])]
        pooled = np.concatenate(same, axis=1) if same else np.zeros((0, 0), np.float32)
        return cls(
            spacings=tuple(_rounded(one.spacing) for one in turned),
            shapes=tuple((one.data.shape[0], one.data.shape[1], one.data.shape[2]) for one in turned),
            sizes=tuple(size_on(one, grid) for one in outlines),
            grid=grid,
            foreground=tuple(map(Intensities.of, pooled)),
            lowest=lowest,
        )

    @property
    def median_size(self) -> Size:
        """Median number of voxels on the grid along each axis."""
        x, y, z = (round(float(length)) for length in np.median(np.array(self.sizes), axis=0))
        return x, y, z

    @property
    def looks_like_ct(self) -> bool:
        """Whether a single channel has intensities as low as those of air in CT."""
        return len(self.foreground) <= 1 and self.lowest < AIR

    @property
    def window(self) -> tuple[float, float] | None:
        """The 0.5 and 99.5 percentiles inside the labels of a CT, rounded to whole numbers; None for other images."""
        if not (self.looks_like_ct and self.foreground):
            return None
        low, high = (float(round(getattr(self.foreground[0], f"percentile_{name}"))) for name in ("00_5", "99_5"))
        return (low, high) if low < high else None

    def to_json(self) -> dict[str, Any]:
        """Return the fingerprint as plain values, under the names that nnU-Net uses where it has the same quantity."""
        return {
            "spacings": [list(spacing) for spacing in self.spacings],
            "shapes": [list(shape) for shape in self.shapes],
            "target_spacing": list(_rounded(self.grid.spacing or (0.0, 0.0, 0.0))),
            "orientation": self.grid.orientation,
            "median_image_size_in_voxels": list(self.median_size),
            "foreground_intensity_properties_per_channel": {
                str(channel): vars(one) for channel, one in enumerate(self.foreground)
            },
            "looks_like_ct": self.looks_like_ct,
            "window": None if self.window is None else list(self.window),
        }


def foreground(image: Volume, label: NDArray[Any]) -> Floats:
    """Return the stored intensities of about `VOXELS` voxels inside a label, (C, voxels), evenly spaced among them.

    Shapes: the image (X, Y, Z) or (X, Y, Z, C), the label (X, Y, Z). A label of background alone gives (C, 0).
    """
    data = image.data if image.data.ndim == 4 else image.data[..., None]
    flat = label.ravel(order="F")
    inside = np.flatnonzero(flat)
    chosen = inside[:: max(len(inside) // VOXELS, 1)][:VOXELS]
    return np.ascontiguousarray(data[np.unravel_index(chosen, label.shape, order="F")].T, dtype=np.float32)


def _rounded(spacing: Spacing) -> Spacing:
    x, y, z = (float(f"{step:.6g}") for step in spacing)
    return x, y, z
