"""A scan as a network sees it: its axes, spacing and intensities, a few planes at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fheat.data.case import Spacing
from fheat.data.orientation import reorient
from fheat.data.resample import coordinates, interpolate, steps_between, target_size
from fheat.inference.windows import Triple
from fheat.io.volume import Volume
from fheat.models.card import Intensity


@dataclass(frozen=True)
class Grid:
    """The voxels a network works on: axis directions such as `RAS` and millimetres; None keeps the scan's own."""

    orientation: str | None = None
    spacing: Spacing | None = None


class Scan:
    """Planes of a volume on a network's grid, read from the stored voxels when asked for; nothing is kept.

    Shapes: the volume (X, Y, Z) or (X, Y, Z, C); planes (C, X', Y', Z') with one axis cut. With the volume's own grid
    and intensity `none` the planes are its voxels as float32.
    """

    def __init__(self, volume: Volume, grid: Grid, intensity: Intensity) -> None:
        self.orientation = grid.orientation or volume.orientation
        view = reorient(volume, self.orientation)
        self._data = view.data[..., None] if view.data.ndim == 3 else view.data
        self.channels = self._data.shape[3]
        self.steps = steps_between(view.spacing, grid.spacing)
        self.source_shape: Triple = self._data.shape[0], self._data.shape[1], self._data.shape[2]
        x, y, z = (target_size(size, step) for size, step in zip(self.source_shape, self.steps, strict=True))
        self.shape: Triple = x, y, z
        self._scale, self._shift = self._statistics(volume, intensity)
        self._limits = intensity.low, intensity.high

    def planes(self, axis: int, start: int, stop: int) -> Tensor:
        """Return planes `start` to `stop` along `axis`, normalised and resampled."""
        places = [coordinates(*grid) for grid in zip(self.source_shape, self.steps, self.shape, strict=True)]
        where = places[axis][start:stop].clip(0, self.source_shape[axis] - 1)
        low, high = int(np.floor(where[0])), int(np.floor(where[-1])) + 2
        part = self._data[(slice(None),) * axis + (slice(low, high),)]
        x = torch.from_numpy(np.array(part.transpose(3, 0, 1, 2), dtype=np.float32, order="C"))
        if self._limits != (None, None):
            x = x.clamp(*self._limits)
        x = x * self._scale.view(-1, 1, 1, 1) + self._shift.view(-1, 1, 1, 1)
        places[axis] = where - low
        for index, place in enumerate(places):
            x = interpolate(x, index + 1, place)
        return x

    def _statistics(self, volume: Volume, intensity: Intensity) -> tuple[Tensor, Tensor]:
        """Return scale and shift of each channel, so that `x * scale + shift` is the network's input."""
        if intensity.kind == "none":
            return torch.ones(self.channels), torch.zeros(self.channels)
        if intensity.low is not None and intensity.high is not None:
            scale = torch.full((self.channels,), 1 / (intensity.high - intensity.low))
            return scale, -intensity.low * scale
        stored = volume.data[..., None] if volume.data.ndim == 3 else volume.data
        moments = [_moments(stored[..., channel], nonzero=intensity.nonzero) for channel in range(self.channels)]
        mean, deviation = torch.tensor(moments, dtype=torch.float64).T
        scale = 1 / torch.where(deviation > 0, deviation, 1.0)
        return scale.float(), (-mean * scale).float()


def _moments(stored: NDArray[Any], *, nonzero: bool) -> tuple[float, float]:
    """Return mean and population deviation, in two passes over the planes as they lie in memory."""

    def planes() -> Iterator[NDArray[Any]]:
        for plane in np.moveaxis(stored, int(np.argmax(stored.strides)), 0):
            yield plane[plane != 0] if nonzero else plane

    count = max(sum(plane.size for plane in planes()), 1)
    mean = sum(float(plane.sum(dtype=np.float64)) for plane in planes()) / count
    squares = sum(float(np.square(plane - mean, dtype=np.float64).sum()) for plane in planes())
    return mean, (squares / count) ** 0.5
