"""Scans and masks on disk, one format per file. A file whose geometry cannot be trusted is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fheat.io.confined import Content, read_confined
from fheat.io.content import SIZE_LIMIT
from fheat.io.dicom_series import SeriesFacts, parse_series
from fheat.io.nifti import read_nifti as read_nifti
from fheat.io.nifti import write_nifti as write_nifti
from fheat.io.volume import Volume as Volume
from fheat.io.volume import geometry_fault
from fheat.system.errors import BadInput
from fheat.system.trust import is_trusting
from fheat.system.trust import trusting as trusting

if TYPE_CHECKING:
    from fheat.io.dicom import Series

__all__ = ["Volume", "list_series", "read_nifti", "read_seg", "read_series", "read_volume", "trusting", "write_nifti"]


def read_volume(path: str | Path, *, files: Sequence[Path] = (), limit: int = SIZE_LIMIT) -> Volume:
    """Read a scan or a mask from a NIfTI file, an NRRD file, the folder of a DICOM series, or a DICOM SEG (.dcm).

    Args:
        path: the file or the folder.
        files: the slices of a DICOM series whose folder holds other files too; see `fheat.io.dicom.read_dicom`.
        limit: largest number of bytes of voxels; see the reader of each format.

    Raises `BadInput` for what cannot be read. Another process with bounded memory and time parses the file
    (`fheat.io.confined`), unless `trusting` says that this one may. The result is the same.
    """
    if is_trusting():
        return parse_volume(path, files=files, limit=limit)
    return _checked(path, read_confined("volume", path, limit, files))


def read_seg(path: str | Path, series: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a DICOM SEG as a label on the grid of the series that it was drawn on, or raise `BadInput`.

    The value of a voxel is the number of its segment, 0 outside of all; see `fheat.io.dicom_seg.read_dicom_seg`. As in
    `read_volume`, another process parses the file.
    """
    if is_trusting():
        return parse_seg(path, series, limit=limit)
    return _checked(path, read_confined("seg", path, limit, series=series))


def _checked(path: str | Path, content: Content) -> Volume:
    """Return the volume that a reading process has sent, or raise `BadInput` where it is none."""
    affine = np.zeros((4, 4)) if content.affine is None else content.affine
    if content.arrays.keys() != {"image"} or geometry_fault(affine) is not None:
        raise BadInput(path, "is damaged (the answer of its reader makes no sense)", "copy it again from its source")
    return Volume(content.arrays["image"], affine)


def list_series(folder: str | Path, *, limit: int = SIZE_LIMIT) -> tuple[SeriesFacts, ...]:
    """Return the DICOM series in a folder, or raise `BadInput`; the headers are parsed as in `read_volume`."""
    if is_trusting():
        return parse_series(folder, limit=limit)
    return read_confined("series", folder, limit).series


def read_series(folder: str | Path, *, files: Sequence[Path] = (), limit: int = SIZE_LIMIT) -> "Series":
    """Read the DICOM series in a folder with the headers of its slices, or raise `BadInput`.

    The pixels are unpacked as `read_volume` does it. The headers, which it has found to be sound, are then read in this
    process; their reader is written in Python and cannot write past its buffers.
    """
    from fheat.io.dicom import Series, read_dicom, read_headers

    if is_trusting():
        return read_dicom(folder, files=files, limit=limit)
    volume = read_volume(folder, files=files, limit=limit)
    return Series(volume, read_headers(folder, files=files, limit=limit))


def parse_volume(path: str | Path, *, files: Sequence[Path] = (), limit: int = SIZE_LIMIT) -> Volume:
    """Read a file in this process; see `read_volume`."""
    source = Path(path)
    if source.is_dir():
        from fheat.io.dicom import read_dicom

        return read_dicom(source, files=files, limit=limit).volume
    if source.name.endswith((".nii", ".nii.gz")):
        return read_nifti(source, limit=limit)
    if source.suffix == ".nrrd":
        from fheat.io.nrrd import read_nrrd

        return read_nrrd(source, limit=limit)
    if source.suffix == ".dcm" and source.exists():
        from fheat.io.dicom_seg import parse_dicom_seg

        return parse_dicom_seg(source, limit=limit)
    if not source.exists():
        raise BadInput(source, "does not exist", "check the path")
    raise BadInput(
        source,
        "is not of a kind that can be read",
        "give .nii, .nii.gz, .nrrd, a DICOM SEG (.dcm) or a folder of DICOM files",
    )


def parse_seg(path: str | Path, series: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a DICOM SEG in this process; see `read_seg`."""
    from fheat.io.dicom import read_grid
    from fheat.io.dicom_seg import read_dicom_seg

    return read_dicom_seg(path, read_grid(series, limit=limit), limit=limit)
