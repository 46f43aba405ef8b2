"""From probabilities on a network's grid to the voxels of a scan: labels, probabilities, largest components."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fheat.data.orientation import view_as
from fheat.data.planes import planes_at_once
from fheat.data.preprocessing import PreparedScan
from fheat.data.resample import coordinates, interpolate
from fheat.io.volume import Volume

_COUNTED_AT_ONCE: Final = 2**22
"""Number of voxels whose component numbers are counted at a time, which takes eight bytes each."""


def paint(probabilities: Tensor, regions: Sequence[int] = ()) -> Tensor:
    """Return label values, (X, Y, Z) uint8, from probabilities (K, X, Y, Z).

    Without regions a voxel gets the most probable class, the lower one where two are equal. With regions there is one
    value per channel: each is painted where its own probability is above one half, later channels over earlier ones.
    """
    labels = torch.zeros(probabilities.shape[1:], dtype=torch.uint8, device=probabilities.device)
    if not regions:
        most = probabilities[0]
        for value, probability in enumerate(probabilities[1:], start=1):  # argmax over few planes is ten times slower
            labels.masked_fill_(probability > most, value)
            most = torch.maximum(most, probability)
        return labels
    for value, probability in zip(regions, probabilities, strict=True):
        labels.masked_fill_(probability > 0.5, value)
    return labels


@dataclass(frozen=True)
class Prediction:
    """Result of a network for a scan, on the scan's own voxels."""

    mask: Volume
    """Label values, (X, Y, Z) uint8."""
    probabilities: Volume | None = None
    """Probability of every class or region, (X, Y, Z, K) float32."""
    uncertainty: Volume | None = None
    """Uncertainty from 0 to 1, (X, Y, Z) float32; see `fheat.inference.uncertainty`."""
    runtime: str = ""
    """The runtime that ran the windows: `torch`, `onnx` or `openvino`."""
    precision: str = ""
    """Precision of the last window: `float32` or `bfloat16`."""


Measure = Callable[[Tensor, Tensor], Tensor]
"""A function of mean probabilities (K, X, Y, Z) and those of the members (J, K, X, Y, Z) with values (X, Y, Z)."""


class Restorer:
    """Collects probabilities plane by plane and writes labels, and what else is wanted, at the scan's own voxels.

    Probabilities, not labels, are brought back to the scan's spacing, so that a boundary falls between voxels where the
    classes are equally probable. Where the grids are equal each label is written as it is.

    Args:
        volume: the scan as stored.
        scan: the same on the network's grid.
        axis: the axis along which planes come.
        regions: label values of nested regions; none for exclusive classes.
        members: number of further predictions behind the mean, along the channels.
        probabilities: whether to keep the probabilities of the mean.
        measure: what to keep beside the label, such as `fheat.inference.uncertainty.entropy`.
    """

    def __init__(
        self,
        volume: Volume,
        scan: PreparedScan,
        axis: int,
        regions: Sequence[int],
        *,
        members: int = 0,
        probabilities: bool = False,
        measure: Measure | None = None,
    ) -> None:
        self._affine, self._view = volume.affine, view_as(volume.affine, scan.orientation)
        self._shape, self._grids = volume.data.shape[:3], (scan.shape, scan.source_shape)
        self._axis, self._regions, self._members = axis, regions, members
        self._wants_probabilities, self._measure = probabilities, measure
        self._labels = self._empty(np.dtype(np.uint8))
        self._probabilities: NDArray[Any] | None = None
        self._measured = None if measure is None else self._empty(np.dtype(np.float32))
        self._places = [
            coordinates(target, 1 / step, source).clip(0, target - 1)
            for target, step, source in zip(scan.shape, scan.steps, scan.source_shape, strict=True)
        ]
        self._written = 0
        self._last: Tensor | None = None

    @property
    def prediction(self) -> Prediction:
        """The prediction made of the collected planes, once all have come."""
        more = (self._probabilities, self._measured)
        probabilities, measured = (None if data is None else Volume(data, self._affine) for data in more)
        return Prediction(Volume(self._labels, self._affine), probabilities, measured)

    def add(self, start: int, planes: Tensor) -> None:
        """Take the next planes, (K, X', Y', Z') with the streamed axis cut, the first at index `start`.

        With members there are K channels for each of them behind those of the mean.
        """
        along, (shape, stored) = self._axis + 1, self._grids
        for part in torch.split(planes, planes_at_once(shape, self._axis, len(planes), stored), dim=along):
            self._add(start, part)
            start += part.shape[along]

    def _add(self, start: int, part: Tensor) -> None:
        along, where = self._axis + 1, self._places[self._axis]
        if not torch.isfinite(part.sum()):  # of probabilities: one pass, and no sum of them is too large
            raise ValueError(
                "the network's output is NaN or infinite: the model or the scan's intensities are at fault"
            )
        for axis, place in enumerate(self._places):
            if axis != self._axis:
                part = interpolate(part, axis + 1, place)
        if self._last is not None:
            part, start = torch.cat([self._last, part], dim=along), start - 1
        reach = start + part.shape[along] - 1
        ready = int(np.searchsorted(where, reach, side="right"))
        if ready > self._written:
            self._write(interpolate(part, along, where[self._written : ready] - start), ready)
        between = ready < len(where) and where[ready] < reach + 1  # the next voxel needs this plane and the one to come
        self._last = part.narrow(along, part.shape[along] - 1, 1).clone() if between else None

    def _write(self, values: Tensor, stop: int) -> None:
        """Write what is wanted of the next planes, which are on the scan's voxels."""
        mean, *members = values.chunk(1 + self._members)
        if len(mean) == 1 and not self._regions:
            raise ValueError("the network has one output channel, which is the background: give a card with regions")
        self._put(self._labels, paint(mean, self._regions), stop)
        if self._wants_probabilities:
            if self._probabilities is None:  # the number of classes is known with the first planes
                self._probabilities = self._empty(np.dtype(np.float32), len(mean))
            self._put(self._probabilities, mean.movedim(0, -1), stop)
        if self._measure is not None and self._measured is not None:
            every = torch.stack(members) if members else mean.new_empty(0, *mean.shape)
            self._put(self._measured, self._measure(mean, every), stop)
        self._written = stop

    def _empty(self, kind: np.dtype[Any], *more: int) -> NDArray[Any]:
        return np.zeros((*self._shape, *more), kind, order="F" if more else "C")  # channel files are written one by one

    def _put(self, target: NDArray[Any], values: Tensor, stop: int) -> None:
        place = (slice(None),) * self._axis + (slice(self._written, stop),)
        self._view(target)[place] = values.cpu().numpy()


def keep_largest(labels: NDArray[np.uint8], regions: Sequence[int] = ()) -> None:
    """Keep the largest 26-connected component of each class, in place.

    Without `regions` each label value is a class. With them, nested from the outermost to the innermost, each is a
    class together with those inside it; what an inner one loses falls to the one around it. Of equally large components
    the first one stays. A mask with a single component per class is unchanged.
    """
    if regions:
        for level, value in enumerate(regions):
            inside = np.isin(labels, regions[level:])
            labels[_all_but_largest(inside)] = 0 if value == regions[0] else regions[level - 1]
        return
    from scipy.ndimage import find_objects  # scipy takes long to import, and most masks stay as they are

    for value, box in enumerate(find_objects(labels), start=1):
        if box is not None:
            labels[box][_all_but_largest(labels[box] == value)] = 0


def _all_but_largest(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    import cc3d

    components, count = cc3d.connected_components(inside, connectivity=26, return_N=True)
    if count <= 1:
        return np.zeros_like(inside)
    sizes = np.zeros(count + 1, dtype=np.int64)
    flat = components.ravel(order="K")
    for start in range(0, flat.size, _COUNTED_AT_ONCE):
        sizes += np.bincount(flat[start : start + _COUNTED_AT_ONCE], minlength=count + 1)
    other: NDArray[np.bool_] = components != 1 + np.argmax(sizes[1:])
    other &= inside
    return other
