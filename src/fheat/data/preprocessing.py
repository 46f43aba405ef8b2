"""The one way from a stored scan to a network's input: for training, validation, probes, prediction and studies."""

from functools import cached_property
from math import ceil, prod
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    NonNegativeFloat,
    PositiveFloat,
    field_validator,
    model_validator,
)
from torch import Tensor

from fheat.data.case import Spacing
from fheat.data.intensity import VOXELS_IN_FLOAT64, Floats, Moments, moments, window, zscore
from fheat.data.orientation import check_codes, reorient
from fheat.data.planes import planes_within
from fheat.data.resample import coordinates, interpolate, nearest, steps_between, target_size
from fheat.io.volume import Volume

NOT_RESAMPLED: Spacing = (1.0, 1.0, 1.0)
"""Steps of a scan that keeps the voxels it is stored with."""
_NO_MOMENTS: Moments = (0.0, 1.0)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Intensity(_Strict):
    """How the stored value x of a voxel becomes network input.

    - `none` leaves it;
    - `zscore` is (x - mean) / deviation with the mean and standard deviation of the channel over the scan;
    - `window` clips x to [low, high] and maps that to [0, 1]: (x - low) / (high - low).

    All are computed in float64 and rounded to float32 once.
    """

    kind: Literal["none", "zscore", "window"] = "none"
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    nonzero: bool = False
    """Let `zscore` measure mean and deviation where the scan is not 0, such as inside a stripped skull."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "window":
            if self.low is None or self.high is None or not self.low < self.high:
                raise ValueError("a window needs low < high")
        elif self.low is not None or self.high is not None:
            raise ValueError("only a window has low and high")
        if self.nonzero and self.kind != "zscore":
            raise ValueError("only zscore can look at non-zero voxels alone")
        return self

    def moments(self, channel: NDArray[Any]) -> Moments:
        """Return the mean and deviation that `apply` needs for a channel; (0, 1) where it needs none."""
        return moments(channel, nonzero=self.nonzero) if self.kind == "zscore" else _NO_MOMENTS

    def apply(self, voxels: NDArray[Any], channel: Moments) -> Floats:
        """Return the network's input for voxels of a channel with these moments, in the shape they have."""
        if self.low is not None and self.high is not None:
            return window(voxels, self.low, self.high)
        return zscore(voxels, *channel) if self.kind == "zscore" else voxels.astype(np.float32)

    def apply_there(self, voxels: Tensor, channel: Moments) -> Tensor:
        """Return the same as `apply`, bit for bit; torch computes it on the device on which the voxels are."""
        if self.kind == "none":
            return voxels.float()
        x = voxels.double()
        if self.low is not None and self.high is not None:
            x, shift, scale = x.clip(self.low, self.high), self.low, self.high - self.low
        else:
            shift, scale = channel[0], channel[1] or 1.0
        return ((x - shift) / x.new_tensor(scale)).float()  # by a number, a GPU would multiply by 1 / scale


class Preprocessing(_Strict):
    """How stored scans become network input: axes turned, then intensities mapped, then voxels resampled.

    A volume (X, Y, Z) or (X, Y, Z, C) becomes (X', Y', Z') or (X', Y', Z', C) in float32; its label (X, Y, Z) becomes
    (X', Y', Z') in uint8. With the defaults, and for a scan that has the orientation and spacing asked for, the voxels
    are the stored ones, only mapped by `intensity`.

    >>> import numpy as np
    >>> from fheat.io import Volume
    >>> scan = Volume(np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.diag([1.0, 1.0, 2.0, 1.0]))
    >>> Preprocessing(spacing=(1, 1, 1), intensity={"kind": "window", "low": 0, "high": 10}).image(scan).shape
    (2, 3, 8)
    """

    orientation: str | None = None
    """Directions the axes point in, such as `RAS`; None keeps those of the scan."""
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    """Millimetres between voxels along these axes; None keeps those of the scan."""
    tolerance: NonNegativeFloat = 0.05
    """Relative difference of the spacing up to which, on all three axes, a scan is kept as stored."""
    intensity: Intensity = Intensity()

    @field_validator("orientation")
    @classmethod
    def _is_one(cls, orientation: str | None) -> str | None:
        return None if orientation is None else check_codes(orientation)

    def steps(self, spacing: Spacing) -> Spacing:
        """Return how many stored voxels one voxel of the network is long per axis, for a scan turned already."""
        if self.spacing is None or np.allclose(spacing, self.spacing, rtol=self.tolerance):
            return NOT_RESAMPLED
        return steps_between(spacing, self.spacing)

    def scan(self, volume: Volume, known: tuple[Moments, ...] | None = None) -> "PreparedScan":
        """Return the scan as the network sees it, to be read a few planes at a time.

        `known` are its moments where an earlier `PreparedScan` of the same volume has computed them.
        """
        return PreparedScan(volume, self, known)

    def image(self, volume: Volume) -> Floats:
        """Return the whole scan as the network sees it, (X', Y', Z') or (X', Y', Z', C)."""
        return self.scan(volume).whole()

    def label(self, volume: Volume) -> NDArray[np.uint8]:
        """Return a label as `image` would be, (X', Y', Z'): the nearest stored voxel, halfway the even one."""
        return self.scan(volume).label(volume)


class PreparedScan:
    """Planes of a volume on a network's grid, computed from the stored voxels when asked for; none are kept.

    Shapes: the volume (X, Y, Z) or (X, Y, Z, C); planes (C, X', Y', Z') with one axis cut. However a scan is cut into
    planes, they are bit for bit those of `whole`. `spacing` and `source_shape` are those of the stored voxels along the
    axes of the network; `stored` are these voxels, (X, Y, Z, C), with their axes as stored.
    """

    def __init__(self, volume: Volume, preprocessing: Preprocessing, known: tuple[Moments, ...] | None = None) -> None:
        self.orientation = preprocessing.orientation or volume.orientation
        view = reorient(volume, self.orientation)
        self._affine = volume.affine
        self.stored, self._data = (data[..., None] if data.ndim == 3 else data for data in (volume.data, view.data))
        self.channels: int = self._data.shape[3]
        self.spacing: Spacing = view.spacing
        self.steps = preprocessing.steps(view.spacing)
        x, y, z = self._data.shape[:3]
        self.source_shape: tuple[int, int, int] = x, y, z
        x, y, z = (target_size(size, step) for size, step in zip(self.source_shape, self.steps, strict=True))
        self.shape: tuple[int, int, int] = x, y, z
        self.intensity = preprocessing.intensity
        self._known = known
        self._has_channels = volume.data.ndim == 4

    @cached_property
    def moments(self) -> tuple[Moments, ...]:
        """Mean and deviation of the stored voxels of each channel, measured when first needed and then kept."""
        if self._known is not None:
            return self._known
        return tuple(self.intensity.moments(self.stored[..., channel]) for channel in range(self.channels))

    def sample(self, count: int) -> Floats:
        """Return the intensities of about `count` stored voxels, mapped: (C, voxels).

        They are every n-th voxel along each axis, with as many left out before the first as after the last, or one
        fewer. An axis that is shorter than n gives the voxel in its middle.
        """
        every = max(ceil((prod(self.source_shape) / count) ** (1 / 3)), 1)
        part = self._data[tuple(_centred(size, every) for size in self.source_shape)]
        return self._mapped(part).reshape(self.channels, -1)

    def planes(self, axis: int, start: int, stop: int, device: torch.device | None = None) -> Tensor:
        """Return planes `start` to `stop` along `axis`, their intensities mapped, then resampled along X, Y and Z.

        They are returned on a device. With CUDA a scan that is not resampled is mapped there, with the same result.
        """
        stop = min(stop, self.shape[axis])
        cut = [(start, stop) if other == axis else (0, length) for other, length in enumerate(self.shape)]
        grids = zip(self.source_shape, self.steps, self.shape, strict=True)
        places = [coordinates(*grid, *part) for grid, part in zip(grids, cut, strict=True)]
        where = places[axis].clip(0, self.source_shape[axis] - 1)
        low, high = int(np.floor(where[0])), int(np.floor(where[-1])) + (1 if self.steps[axis] == 1 else 2)
        part = self._data[(slice(None),) * axis + (slice(low, high),)]
        if device is not None and device.type == "cuda" and self.steps == NOT_RESAMPLED:
            return self._mapped_on(device, part)
        x = torch.from_numpy(self._mapped(part))
        places[axis] = where - low
        for index, place in enumerate(places):
            x = interpolate(x, index + 1, place)
        return x if device is None else x.to(device)

    def whole(self) -> Floats:
        """Return all planes at once, (X', Y', Z'), or (X', Y', Z', C) where the volume has a channel axis."""
        data = self.planes(0, 0, self.shape[0]).numpy()
        return np.ascontiguousarray(np.moveaxis(data, 0, -1)) if self._has_channels else data[0]

    def label(self, label: Volume) -> NDArray[np.uint8]:
        """Return the label of this scan, stored on the same voxels, on the network's grid, (X', Y', Z')."""
        data = reorient(Volume(label.data, self._affine), self.orientation).data
        for axis, (size, step, target) in enumerate(zip(self.source_shape, self.steps, self.shape, strict=True)):
            data = nearest(data, axis, coordinates(size, step, target)) if step != 1 else data
        return np.ascontiguousarray(data, dtype=np.uint8)

    def _mapped(self, part: NDArray[Any]) -> Floats:
        """Return the input of stored voxels (X, Y, Z, C) as (C, X, Y, Z), with few of them in float64 at a time."""
        mapped = np.empty((self.channels, *part.shape[:3]), dtype=np.float32)
        along = int(np.argmax(np.abs(part.strides[:3])))
        planes = planes_within(VOXELS_IN_FLOAT64, part.shape[:3], along)
        for channel, target in enumerate(mapped):
            source, place = np.moveaxis(part[..., channel], along, 0), np.moveaxis(target, along, 0)
            for first in range(0, len(source), planes):
                some = slice(first, first + planes)
                place[some] = self.intensity.apply(source[some], self.moments[channel])
        return mapped

    def _mapped_on(self, device: torch.device, part: NDArray[Any]) -> Tensor:
        """Return the same as `_mapped`, computed on a device."""
        voxels = tensor_of(part).to(device)
        mapped = [self.intensity.apply_there(voxels[..., at], one) for at, one in enumerate(self.moments)]
        return torch.stack(mapped)


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a tensor with the values of an array of numbers, in its type, or in float64 where torch has none like it.

    It shares the memory of the array where torch can: not where that is read only, axes run backwards or voxels lie
    between other things, and not with a foreign byte order.
    """
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    shares = native.flags.writeable and all(step >= 0 and step % native.itemsize == 0 for step in native.strides)
    try:
        return torch.from_numpy(native if shares else native.copy(order="K"))
    except TypeError:
        return torch.from_numpy(array.astype(np.float64))


def _centred(size: int, every: int) -> slice:
    """Return every n-th of `size` indices, as far from the first of them as from the last, or one nearer."""
    length = max(size // every - 1, 0) * every + 1
    start = (size - length) // 2
    return slice(start, start + length, every)
