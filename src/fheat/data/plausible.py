"""Whether a scan can be what its header says, by arithmetic on the header alone, before anything is computed from it.

A header is a claim. One wrong byte, metres for millimetres, makes a scan a thousand times longer, and bringing it to
the grid of a network a billion times larger. What no scanner gives is therefore refused, unless the user allows it;
what is odd but harmless to the machine is only noted.
"""

from math import prod
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fheat.data.appearance import Appearance, Unusual
from fheat.data.preprocessing import PreparedScan
from fheat.system.errors import BadInput

Allowance = Literal["implausible-spacing"]
"""Exception that a user may allow by name: a scan whose geometry is refused otherwise."""
SMALLEST_SPACING: Final = 1e-4
"""Least size of a voxel in millimetres: half the wavelength of light is twice this; electron microscopes have less."""
LARGEST_SPACING: Final = 50.0
"""Greatest size of a voxel in millimetres: the thickest slices of localisers with their gaps have 40."""
LARGEST_EXTENT: Final = 4000.0
"""Greatest extent along an axis in millimetres: the longest scanners see a body of 2 m at once."""
MOST_VOXELS: Final = 2**32
"""Greatest number of voxels, over all channels, on the grid of a network: 16 GiB in float32. A body of 2 m has half as
many at 0.5 mm."""
TRAINING_FACTOR: Final = 8.0
"""A scan whose spacing and extent are both greater than those of all training scans by more than this factor is taken
for one in the wrong unit; between neighbouring units there are 10 and 1000."""
NOTED_SPACING: Final = 0.005
"""Size of a voxel in millimetres below which it is noted: in vivo scanners do not resolve it, micro-CT does."""
_REMEDY: Final = "correct its header, or give --allow implausible-spacing if it is true"
_AXES: Final = "xyz"


def check_plausible(path: str | Path, scan: PreparedScan, known: Appearance | None = None) -> None:
    """Raise `BadInput` for a scan whose geometry no scanner gives, or that is too large on the grid of the network.

    Args:
        path: the file that is named.
        scan: the scan, of which only spacing and shapes are looked at.
        known: what the training scans of the network looked like.
    """
    extents = np.multiply(scan.spacing, scan.source_shape)
    for axis, spacing, extent in zip(_AXES, scan.spacing, extents, strict=True):
        if not SMALLEST_SPACING <= spacing <= LARGEST_SPACING:
            reason = f"spacing {axis} is {spacing:g} mm, outside {SMALLEST_SPACING:g} to {LARGEST_SPACING:g} mm"
            raise BadInput(path, reason, _REMEDY)
        if extent > LARGEST_EXTENT:
            reason = f"extent {axis} is {extent:,.0f} mm, over {LARGEST_EXTENT:,.0f} mm"
            raise BadInput(path, reason, _REMEDY)
    if (voxels := scan.channels * prod(scan.shape)) > MOST_VOXELS:
        shape = " x ".join(map(str, scan.shape))
        reason = f"becomes {shape} voxels on the network's grid, {4 * voxels / 2**30:,.0f} GiB, over "
        raise BadInput(path, f"{reason}{4 * MOST_VOXELS / 2**30:,.0f} GiB", _REMEDY)
    _check_against_training(path, scan, known or Appearance())


def _check_against_training(path: str | Path, scan: PreparedScan, known: Appearance) -> None:
    values = {"spacing": max(scan.spacing), "extent": max(np.multiply(scan.spacing, scan.source_shape))}
    trained = {
        kind: max((one.greatest for name, one in known.ranges.items() if name.startswith(f"{kind} ")), default=np.inf)
        for kind in values
    }
    if all(values[kind] > TRAINING_FACTOR * trained[kind] for kind in values):
        reason = f"spacing {values['spacing']:g} mm and extent {values['extent']:g} mm are more than "
        most = f"{trained['spacing']:g} mm and {trained['extent']:g} mm"
        raise BadInput(path, f"{reason}{TRAINING_FACTOR:g} times those of the training scans, {most}", _REMEDY)


def check_not_constant(path: str | Path, scan: PreparedScan) -> None:
    """Raise `BadInput` for a scan that has one value everywhere in all of its channels: there is nothing to learn."""
    if len(constant_channels(scan)) == scan.channels:
        raise BadInput(path, f"holds the value {scan.stored.flat[0]:g} everywhere", "export the image again")


def constant_channels(scan: PreparedScan) -> list[int]:
    """Return the channels that have one value everywhere."""
    return [channel for channel, voxels in enumerate(np.moveaxis(scan.stored, -1, 0)) if _is_constant(voxels)]


def oddities(scan: PreparedScan) -> list[Unusual]:
    """Return what is odd about a scan whatever it is compared with: one value everywhere, or a microscopic size."""
    found = []
    for channel in constant_channels(scan):
        where = f" of channel {channel}" if scan.channels > 1 else ""
        found.append(Unusual(f"intensity of every voxel{where}", float(scan.stored[..., channel].flat[0])))
    return found + microscopic(scan)


def microscopic(scan: PreparedScan) -> list[Unusual]:
    """Return the spacings of a scan that only microscopes give."""
    small = [(axis, spacing) for axis, spacing in zip(_AXES, scan.spacing, strict=True) if spacing < NOTED_SPACING]
    return [Unusual(f"spacing {axis} (mm)", float(f"{spacing:.4g}")) for axis, spacing in small]


def _is_constant(voxels: NDArray[np.generic]) -> bool:
    """Return whether all voxels are equal; most scans differ in the few that are looked at first."""
    few = voxels[tuple(slice(None, None, max(length // 8, 1)) for length in voxels.shape)]
    return bool((few == few.flat[0]).all() and (voxels == voxels.flat[0]).all())
