"""All metrics of one pair of masks, or of two label maps class by class; some are not defined where a mask is empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fheat.metrics.masks import Mask, dice, jaccard, surface_distances

PairKind = Literal["both", "missed", "spurious", "both_empty"]
"""Which masks of a pair have voxels: both; the reference alone, `missed`; the prediction alone, `spurious`; none."""
Unit = Literal["mm", "voxels"]
"""Unit of distances and of the tolerance of the surface Dice."""

METRICS: Final = ("dice", "jaccard", "hd95", "hd95_max", "asd", "assd", "surface_dice")
NEEDS_SURFACES: Final = METRICS[2:]
"""Metrics that are not defined where a mask is empty, and that depend on the unit."""


@dataclass(frozen=True)
class Scores:
    """Metrics of one pair of masks. Distances are None where a mask is empty: there is no surface to measure from.

    `case` is `both` where both masks have voxels, `missed` where the prediction is empty, `spurious` where the
    reference is, and `both_empty`. Overlap is 0 for `missed` and `spurious`, and 1 for `both_empty`.
    """

    dice: float
    jaccard: float
    hd95: float | None
    hd95_max: float | None
    asd: float | None
    assd: float | None
    surface_dice: float | None
    case: PairKind
    unit: Unit

    def __getitem__(self, name: str) -> Any:
        """Return a metric by name, as from a mapping."""
        if name not in self.keys():
            raise KeyError(f"no metric {name!r}: use one of {', '.join(self.keys())}")
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """Return the names of all fields, so that `dict(scores)` works."""
        return tuple(self.__dataclass_fields__)


def evaluate(
    prediction: ArrayLike, reference: ArrayLike, spacing: Sequence[float] | None = None, *, tolerance: float = 2.0
) -> Scores:
    """Compare two binary masks.

    Args:
        prediction: mask of booleans, or of numbers of which non-zero means inside; any number of axes.
        reference: mask of the same shape.
        spacing: millimetres between voxel centres along each axis; without it distances are in voxels.
        tolerance: distance that counts as near in the surface Dice, in the unit of the distances.

    `hd95` pools both directions and `asd` has one, as medpy computes them and the papers print them; `hd95_max` and
    `assd` are the symmetric definitions. See `fheat.metrics.masks`.
    """
    predicted, true = _mask("prediction", prediction), _mask("reference", reference)
    if predicted.shape != true.shape:
        raise ValueError(
            f"prediction has shape {predicted.shape} and reference {true.shape}: resample one to the other"
        )
    steps = _checked_spacing(spacing, predicted.ndim)
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance!r} is not a distance: use a number >= 0")
    kind = _pair_kind(bool(predicted.any()), bool(true.any()))
    unit: Unit = "voxels" if spacing is None else "mm"
    overlap = dice(predicted, true), jaccard(predicted, true)
    if kind != "both":
        return Scores(*overlap, None, None, None, None, None, kind, unit)
    distances = surface_distances(predicted, true, steps)
    near = distances.surface_dice(tolerance)
    return Scores(*overlap, distances.hd95, distances.hd95_max, distances.asd, distances.assd, near, kind, unit)


def evaluate_labels(
    prediction: ArrayLike,
    reference: ArrayLike,
    labels: Mapping[str, Sequence[int]],
    spacing: Sequence[float] | None = None,
    *,
    tolerance: float = 2.0,
) -> dict[str, Scores]:
    """Compare two label maps class by class, in the order of `labels`.

    Args:
        prediction: label map of whole numbers, in any type; any number of axes.
        reference: label map of the same shape.
        labels: name of each class and its label values; several values make a region, such as whole tumour (1, 2, 3).
        spacing: as in `evaluate`.
        tolerance: as in `evaluate`.

    Values that belong to no class are background. For a class of one value the result is that of `evaluate` on the
    masks `map == value`.
    """
    if not labels:
        raise ValueError("labels is empty: name at least one class")
    for name, values in labels.items():
        if not values:
            raise ValueError(f"labels[{name!r}] is empty: give the values that belong to it")
    predicted, true = _label_map("prediction", prediction), _label_map("reference", reference)
    return {
        name: evaluate(np.isin(predicted, values), np.isin(true, values), spacing, tolerance=tolerance)
        for name, values in ((name, [int(value) for value in values]) for name, values in labels.items())
    }


def first_fraction(values: NDArray[Any]) -> float | None:
    """Return the first value that is not a whole number, which no label map may hold, or None."""
    if values.dtype.kind != "f":
        return None
    broken = values[~(np.isfinite(values) & (values == np.round(values)))]
    return float(broken[0]) if broken.size else None


def _label_map(name: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}: give whole numbers")
    fraction = first_fraction(array)
    if fraction is not None:
        raise ValueError(f"{name} holds {fraction!r}: label values are whole numbers")
    return array


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


def _pair_kind(predicted: bool, true: bool) -> PairKind:
    if predicted and true:
        return "both"
    if true:
        return "missed"
    return "spurious" if predicted else "both_empty"
