"""Bring the axes of a volume into another order or direction, without copying a voxel."""

from collections.abc import Callable
from typing import Any

import nibabel
import numpy as np
from nibabel import orientations
from numpy.typing import NDArray

from fheat.io.volume import Volume


def check_codes(codes: str) -> str:
    """Return orientation letters such as `RAS` in capitals, or raise ValueError."""
    axes = [next((pair for pair in ("LR", "PA", "IS") if letter in pair), None) for letter in codes.upper()]
    if None in axes or len(set(axes)) != 3 or len(axes) != 3:
        raise ValueError(f"orientation={codes!r} is not one: use one letter each of L/R, P/A and I/S, such as 'RAS'")
    return codes.upper()


def reorient(volume: Volume, codes: str) -> Volume:
    """Return a view whose axes point as `codes` says, for instance `RAS`; the same codes give the same voxels.

    An oblique volume keeps its angle: its axes are only permuted and flipped to lie nearest to the asked directions.
    """
    change = _change(volume.affine, codes)
    affine = volume.affine @ orientations.inv_ornt_aff(change, volume.data.shape[:3])
    return Volume(orientations.apply_orientation(volume.data, change), np.asarray(affine, dtype=np.float64))


def view_as(affine: NDArray[np.float64], codes: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a function that views voxels, which lie as `affine` says, with axes that point as `codes` says.

    Writing goes through to the voxels.
    """
    change = _change(affine, codes)
    return lambda data: np.asarray(orientations.apply_orientation(data, change))


def _change(affine: NDArray[np.float64], codes: str) -> NDArray[np.float64]:
    here, there = nibabel.io_orientation(affine), orientations.axcodes2ornt(check_codes(codes))
    return np.asarray(orientations.ornt_transform(here, there))
