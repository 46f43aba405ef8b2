"""Appearance of the training scans of a model, and the quantities in which another scan differs from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

from fheat.data.preprocessing import PreparedScan

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
VOXELS: Final = 2**16
"""Number of voxels of a scan, evenly spaced, that its intensities are measured on."""
LENGTH_FACTOR: Final = 1.25
"""Factor by which a length may be below the least or above the greatest one of the training scans."""
SHARE_MARGIN: Final = 0.1
"""Distance that a share of voxels may have from those of the training scans."""
SPAN_MARGIN: Final = 0.15
"""Distance that a quantile may have from those of the training scans, as a part of their intensity span: from the
least 5 % quantile to the greatest 95 % quantile."""

_AXES: Final = "xyz"
Floats64 = NDArray[np.float64]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Looks:
    """Appearance of one scan with C channels, as a network sees it.

    Shapes: `lengths` (2, 3), the spacing it is stored with and its extent, in millimetres along the network's axes;
    `shares` (C, 2), the share of voxels with the lowest intensity, which is the background of a scan that was masked,
    and with the highest; for an intensity window these are the voxels that are clipped; `quantiles` (C, 5) of the
    intensities of all other voxels, as the network gets them. With the background among them, the median would jump
    where the background is half of the scan. The number of voxels on the network's grid is left out: it is the extent
    over the spacing of the network.
    """

    lengths: Floats64
    quantiles: Floats64
    shares: Floats64

    @classmethod
    def of(cls, scan: PreparedScan) -> Self:
        """Measure a scan. Intensities are those of `VOXELS` stored voxels, mapped but not resampled."""
        channels = scan.sample(VOXELS).astype(np.float64)
        return cls(
            lengths=np.array([scan.spacing, np.multiply(scan.spacing, scan.source_shape)]),
            quantiles=np.array([np.quantile(_between(voxels), QUANTILES) for voxels in channels]),
            shares=np.array([[(voxels == end).mean() for end in (voxels.min(), voxels.max())] for voxels in channels]),
        )

    def named(self) -> dict[str, float]:
        """Return every quantity by its name, rounded to four digits: rounding keeps the order of any two values."""
        found: dict[str, float] = {}
        for kind, values in zip(("spacing", "extent"), self.lengths, strict=True):
            found |= {f"{kind} {axis} (mm)": value for axis, value in zip(_AXES, values, strict=True)}
        for channel, (quantiles, shares) in enumerate(zip(self.quantiles, self.shares, strict=True)):
            where = f" of channel {channel}" if len(self.quantiles) > 1 else ""
            for share, value in zip(QUANTILES, quantiles, strict=True):
                found[f"{share:.0%} intensity quantile{where}"] = value
            for end, value in zip(("lowest", "highest"), shares, strict=True):
                found[f"share of voxels at the {end} intensity{where}"] = value
        return {name: float(f"{value:.4g}") for name, value in found.items()}


def _between(voxels: Floats64) -> Floats64:
    """Return the voxels between the lowest and the highest intensity; all voxels where there are none."""
    inner = voxels[(voxels > voxels.min()) & (voxels < voxels.max())]
    return inner if inner.size else voxels


class Range(_Strict):
    """Least and greatest value of a quantity over the training scans, and the bounds outside which it is unusual."""

    least: FiniteFloat
    greatest: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat

    def excess(self, value: float) -> float:
        """Return how far a value is from the training scans, in units of the margin: above 1 it is unusual."""
        distance = max(value - self.greatest, self.least - value, 0.0)
        margin = self.high - self.greatest if value > self.greatest else self.least - self.low
        return distance / margin if margin > 0 else inf if distance > 0 else 0.0


@dataclass(frozen=True)
class Unusual:
    """A quantity of a scan that is unusual: its value, and the least and greatest value over the training scans.

    Without these the value is unusual for any scan.
    """

    quantity: str
    value: float
    least: float | None = None
    greatest: float | None = None

    def __str__(self) -> str:
        if self.least is None or self.greatest is None:
            return f"{self.quantity} is {self.value:g}"
        seen = f"{self.least:g}" if self.least == self.greatest else f"{self.least:g} to {self.greatest:g}"
        return f"{self.quantity} is {self.value:g}, in training {seen}"


class Appearance(_Strict):
    """The range of every quantity of `Looks` over the training scans. Without ranges no scan is unusual.

    The bounds of a range are its least and greatest value, widened: those of a length by `LENGTH_FACTOR`, those of a
    share by `SHARE_MARGIN`, and those of a quantile by `SPAN_MARGIN` of the intensity span of the channel.

    >>> from fheat.data.phantom import phantom
    >>> from fheat.data.preprocessing import Preprocessing
    >>> looks = Looks.of(Preprocessing(intensity={"kind": "zscore"}).scan(phantom(0, (40, 36, 34)).image))
    >>> Appearance.of([looks]).unusual(looks)
    []
    """

    scans: NonNegativeInt = 0
    """Number of training scans."""
    ranges: dict[str, Range] = Field(default_factory=dict)

    @classmethod
    def of(cls, scans: Iterable[Looks]) -> Self:
        """Return the ranges over scans that have the same number of channels; at least one is needed."""
        looks = list(scans)
        parts = [np.stack([getattr(one, part) for one in looks]) for part in ("lengths", "quantiles", "shares")]
        least, greatest = Looks(*(part.min(axis=0) for part in parts)), Looks(*(part.max(axis=0) for part in parts))
        span = SPAN_MARGIN * (greatest.quantiles[:, -1:] - least.quantiles[:, :1])
        few, many = np.maximum(least.shares - SHARE_MARGIN, 0), np.minimum(greatest.shares + SHARE_MARGIN, 1)
        low = Looks(least.lengths / LENGTH_FACTOR, least.quantiles - span, few)
        high = Looks(greatest.lengths * LENGTH_FACTOR, greatest.quantiles + span, many)
        ends = [one.named() for one in (least, greatest, low, high)]
        return cls(
            scans=len(looks),
            ranges={
                name: Range(**dict(zip(Range.model_fields, (end[name] for end in ends), strict=True)))
                for name in ends[0]
            },
        )

    def unusual(self, looks: Looks) -> list[Unusual]:
        """Return the quantities in which a scan differs from the training scans, the greatest difference first."""
        found = [
            (known.excess(value), Unusual(name, value, known.least, known.greatest))
            for name, value in looks.named().items()
            if (known := self.ranges.get(name)) is not None and not known.low <= value <= known.high
        ]
        return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


def unusual_text(scan: str, found: list[Unusual]) -> str:
    """Say in one line that a scan does not look like the training scans, or any, with the quantity that comes first."""
    first, *others = found
    more = f"; {len(others)} other {'quantity differs' if len(others) == 1 else 'quantities differ'} too"
    reason = f"{first}{more if others else ''}"
    like = "a usual scan" if first.least is None else "the training scans"
    return f"{scan} does not look like {like}, so its mask may be wrong: {reason}"
