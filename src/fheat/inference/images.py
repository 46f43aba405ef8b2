"""Scans as callers give them, a file, an array or a volume, and the volume that each of them means."""

from pathlib import Path
from typing import Any

import numpy as np
from nibabel.spatialimages import SpatialImage
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fheat.io import read_volume
from fheat.io.volume import Volume


def as_volume(image: Volume | SpatialImage | str | Path | NDArray[Any] | Tensor, affine: ArrayLike | None) -> Volume:
    """Return the image with its place; an array without affine gets the identity."""
    if isinstance(image, Volume):
        return image
    if isinstance(image, str | Path):
        return read_volume(image)
    if isinstance(image, SpatialImage):
        return Volume.from_nibabel(image)
    array = image.numpy(force=True) if isinstance(image, Tensor) else np.asarray(image)
    return Volume(array, np.eye(4) if affine is None else np.asarray(affine, dtype=np.float64))


def check_numbers(volume: Volume) -> None:
    """Raise a `ValueError` of one line where a voxel is no number of float32."""
    if volume.data.dtype.kind == "f" and not _fits_float32(volume.data):
        raise ValueError("the image holds NaN, infinity or numbers beyond float32: replace them first")


def _fits_float32(data: NDArray[Any]) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array([data.min(), data.max()]).astype(np.float32)).all())
