"""Reading the voxels of a case: the image with all its channels, and the label on the grid of the image."""

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Case
from fheat.io import read_seg, read_volume
from fheat.io.content import SIZE_LIMIT
from fheat.io.h5 import read_h5
from fheat.io.volume import Volume, grid_difference
from fheat.system.errors import BadInput

SEG_ENDING: Final = ".dcm"
"""Ending of a label that is a DICOM SEG, drawn on the series that is the image of its case."""
_SAME_GRID: Final = "resample one onto the other's grid"


def read_image(case: Case, limit: int = SIZE_LIMIT) -> Volume:
    """Read the image, (X, Y, Z), or (X, Y, Z, C) with the channels in the order of `case.images`.

    A single file is returned as it is. Channel files must be 3-D and share one grid, that of the first. A file with
    more bytes of voxels than `limit` raises `BadInput`; see the reader of each format.
    """
    _check_channel_numbers(case)
    first = _read(case.images[0], case, limit)[0]
    if len(case.images) == 1:
        return first
    channels = np.empty((*first.data.shape[:3], len(case.images)), first.data.dtype, order="F")
    for index, path in enumerate(case.images):
        channel = _read(path, case, limit)[0] if index else first
        if channel.data.ndim != 3:
            raise BadInput(path, f"has shape {channel.data.shape}: a channel is (X, Y, Z)", "split its channels")
        if difference := grid_difference(first, channel):
            reason = f"field {difference.field} is {difference.second}, that of the first channel {difference.first}"
            raise BadInput(path, reason, _SAME_GRID)
        channels = channels.astype(np.result_type(channels, channel.data), copy=False)
        channels[..., index] = channel.data
    return Volume(channels, first.affine)


def read_label(case: Case, image: Volume | None = None) -> Volume | None:
    """Read the label (X, Y, Z) as integers; return None if the case has none.

    The label must have the grid of the image, which is read for the comparison unless it is given.
    """
    if case.label is None:
        return None
    label = read_stored_label(case)
    if label is None:
        return None
    if difference := grid_difference(read_image(case) if image is None else image, label):
        reason = f"field {difference.field} of the label is {difference.second}, that of the image {difference.first}"
        raise BadInput(case.label, reason, _SAME_GRID)
    data = integers(label.data)
    if data is None:
        raise BadInput(case.label, f"holds {fractions(label.data)}", "round the label or export it again")
    return Volume(data, label.affine)


def read_stored_label(case: Case) -> Volume | None:
    """Read the label without checking its grid and values; return None if the case has none.

    Values are as stored, or those that `case.values` gives for them; one that it does not have raises `BadInput`.
    """
    if case.label is None:
        return None
    if case.label.suffix.lower() == SEG_ENDING:
        return _renumbered(case, read_seg(case.label, case.images[0]))
    image, label = _read(case.label, case)
    return _renumbered(case, label if case.label.suffix == ".h5" else image)


def _renumbered(case: Case, label: Volume | None) -> Volume | None:
    data = None if label is None or not case.values else integers(label.data)
    if label is None or data is None:
        return label
    numbered, known = np.zeros_like(data), np.zeros(data.shape, dtype=bool)
    for stored, value in case.values:
        here = data == stored
        numbered[here], known = value, known | here
    if not known.all():
        other, listed = int(data[~known].flat[0]), ", ".join(str(stored) for stored, _ in case.values)
        raise BadInput(
            str(case.label), f"holds the label {other}; the datalist has {listed}", "correct it or import again"
        )
    return Volume(numbered, label.affine)


def integers(data: NDArray[Any]) -> NDArray[Any] | None:
    """Return the values as integers (integers unchanged), or None if some are not whole numbers."""
    if data.dtype.kind in "iu":
        return data
    lowest, highest = float(data.min()), float(data.max())
    if max(-lowest, highest) > np.iinfo(np.int32).max:
        return None
    whole = data.astype(np.uint8 if lowest >= 0 and highest <= 255 else np.int32)
    return whole if np.array_equal(whole, data) else None


def fractions(data: NDArray[Any]) -> str:
    """Return a text that says how many values are not whole numbers, with an example."""
    broken = data[data != np.round(data)]
    example = f", such as {broken[0]:g}" if broken.size else f", as large as {np.abs(data).max():g}"
    return f"{max(broken.size, 1):,} values that are no label numbers{example}"


def _check_channel_numbers(case: Case) -> None:
    """Raise `BadInput` if a channel is missing between others, such as `_0001` between `_0000` and `_0002`."""
    matches = [re.search(r"_(\d{4})\.", path.name) for path in case.images]
    numbers = [int(match[1]) for match in matches if match]
    if len(numbers) == len(matches) > 1 and numbers != list(range(len(numbers))):
        missing = min(set(range(max(numbers) + 1)) - set(numbers))
        raise BadInput(case.images[0], f"channel _{missing:04d} of {case.id} is missing", "add the file")


def _read(path: Path, case: Case, limit: int = SIZE_LIMIT) -> tuple[Volume, Volume | None]:
    """Read one file, or the folder of a DICOM series, and its label if it is an h5 file with one."""
    if path.suffix == ".h5" and not path.is_dir():
        return read_h5(path, spacing=case.spacing or (1.0, 1.0, 1.0), limit=limit)
    return read_volume(path, files=case.files, limit=limit), None
