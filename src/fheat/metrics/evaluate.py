"""All metrics of one pair of masks, with the cases in which some are not defined."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fheat.metrics.overlap import Mask, dice, jaccard
from fheat.metrics.surface import surface_distances

Case = Literal["both", "missed", "spurious", "both_empty"]


@dataclass(frozen=True)
class Scores:
    """Metrics of one mask. Distances are None where a mask is empty: there is no surface to measure from.

    `case`: `both` have voxels; `missed`, the prediction is empty; `spurious`, the reference is; `both_empty`. Overlap
    is 0 in the two middle cases and 1 in the last.
    """

    dice: float
    jaccard: float
    hd95: float | None
    hd95_max: float | None
    asd: float | None
    assd: float | None
    surface_dice: float | None
    case: Case
    unit: Literal["mm", "voxels"]

    def __getitem__(self, name: str) -> Any:
        """Return a metric by name, as from a mapping."""
        if name not in self.keys():
            raise KeyError(f"no metric {name!r}: use one of {', '.join(self.keys())}")
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """Return the names, so that `dict(scores)` works."""
        return tuple(self.__dataclass_fields__)


def evaluate(
    prediction: ArrayLike, reference: ArrayLike, spacing: Sequence[float] | None = None, *, tolerance: float = 2.0
) -> Scores:
    """Compare two binary masks.

    Args:
        prediction: boolean, or numbers of which non-zero means inside; any number of axes.
        reference: of the same shape.
        spacing: millimetres between voxel centres per axis; distances are in voxels without it.
        tolerance: of the surface Dice, in the unit of the distances.

    `hd95` is pooled and `asd` one-directional, as medpy computes them and the papers print them; `hd95_max` and `assd`
    are the symmetric readings. See `fheat.metrics.surface`.
    """
    predicted, true = _mask("prediction", prediction), _mask("reference", reference)
    if predicted.shape != true.shape:
        raise ValueError(
            f"prediction has shape {predicted.shape} and reference {true.shape}: resample one to the other"
        )
    steps = _checked_spacing(spacing, predicted.ndim)
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance!r} is not a distance: use a number >= 0")
    case = _case(bool(predicted.any()), bool(true.any()))
    unit: Literal["mm", "voxels"] = "voxels" if spacing is None else "mm"
    overlap = dice(predicted, true), jaccard(predicted, true)
    if case != "both":
        return Scores(*overlap, None, None, None, None, None, case, unit)
    found = surface_distances(predicted, true, steps)
    near = found.surface_dice(tolerance)
    return Scores(*overlap, found.hd95, found.hd95_max, found.asd, found.assd, near, case, unit)


def _mask(name: str, values: ArrayLike) -> Mask:
    array = np.asarray(values)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: give an array with at least one voxel")
    if array.dtype != np.bool_ and not np.issubdtype(array.dtype, np.number):
        raise TypeError(f"{name} has dtype {array.dtype}: give booleans or numbers")
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity: threshold it before evaluating")
    return array.astype(np.bool_)


def _checked_spacing(spacing: Sequence[float] | None, ndim: int) -> tuple[float, ...]:
    if spacing is None:
        return (1.0,) * ndim
    steps = tuple(float(step) for step in spacing)
    if len(steps) != ndim or not all(np.isfinite(step) and step > 0 for step in steps):
        raise ValueError(f"spacing={steps} is not usable: give {ndim} finite numbers above 0")
    return steps


def _case(predicted: bool, true: bool) -> Case:
    if predicted and true:
        return "both"
    if true:
        return "missed"
    return "spurious" if predicted else "both_empty"
