"""Reading and writing NIfTI-1 and NIfTI-2, `.nii` and `.nii.gz`.

Readers of this format usually stop at the last voxel and never compare the gzip checksum, so a flipped bit goes
unnoticed. Here the header must agree with itself and with the length of the content, which is read to its end and no
further than declared. A file is written completely or not at all.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from fheat.io.content import SIZE_LIMIT, Content, opened, packed
from fheat.io.nifti_header import NiftiHeader, read_header
from fheat.io.volume import Volume, as_voxels, check_finite
from fheat.system.errors import BadInput
from fheat.system.files import write_file


def read_nifti(path: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a scan or a mask with its geometry, or raise `BadInput`.

    Args:
        path: `.nii` or `.nii.gz`.
        limit: largest number of bytes of the voxels; a larger file is refused before they are unpacked.

    Integer data without scaling keep their type; scaled data become float32. A trailing axis of length one is dropped.
    The affine is the sform, or the qform if there is no sform; metres and micrometres become millimetres.
    """
    source = Path(path)
    with opened(source) as file, np.errstate(all="ignore"):
        content = Content(source, file, packed=source.name.endswith(".gz"))
        header = _header(content)
        if (declared := header.voxel_bytes) > limit:
            reason = f"declares {declared:,} bytes of voxels, over the limit of {limit:,}"
            raise BadInput(source, reason, "raise the limit if it is meant")
        data = _voxels(header, content.voxels(declared))
        check_finite(source, data)
        return Volume(data, header.affine)


def write_nifti(volume: Volume, path: str | Path) -> None:
    """Write `.nii` or `.nii.gz`, replacing an older file only once the new one is complete on disk."""
    target = Path(path)
    if not target.name.endswith((".nii", ".nii.gz")):
        raise BadInput(target, "has no NIfTI ending", "name it .nii or .nii.gz")
    data = volume.data.astype(np.uint8) if volume.data.dtype == np.bool_ else volume.data
    short = max(data.shape) < 2**15
    image = nibabel.Nifti1Image(data, volume.affine) if short else nibabel.Nifti2Image(data, volume.affine)
    header = image.header
    header.set_xyzt_units("mm")
    header.set_slope_inter(1, 0)
    parts = _stored(header, data)
    write_file(target, packed(parts) if target.name.endswith(".gz") else parts)


def _stored(header: nibabel.Nifti1Header, data: NDArray[Any]) -> Iterator[bytes]:
    """Yield the content of the file plane by plane, so that there is no second copy of the voxels."""
    start = BytesIO()
    header.write_to(start)
    yield start.getvalue()
    kind = header.get_data_dtype()
    for plane in np.moveaxis(data.reshape(*data.shape[:2], -1, order="F"), -1, 0):
        yield plane.astype(kind, copy=False).tobytes(order="F")


def _header(content: Content) -> NiftiHeader:
    try:
        return read_header(content)
    except BadInput:
        content.check_rest()
        raise


def _voxels(header: NiftiHeader, content: bytearray) -> NDArray[Any]:
    """Return the voxels as a view of the content, or a scaled copy if the header has a scale."""
    data = as_voxels(content, header.shape, header.kind)
    return data if header.scale == (1.0, 0.0) else _scaled(data, *header.scale)


def _scaled(stored: NDArray[Any], slope: float, intercept: float) -> NDArray[np.float32]:
    """Return `stored * slope + intercept`, computed plane by plane in double precision."""
    data = np.empty(stored.shape, dtype=np.float32, order="F")
    for plane in range(stored.shape[-1]):
        data[..., plane] = stored[..., plane] * np.float64(slope) + intercept
    return data
