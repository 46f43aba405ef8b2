"""Reading and writing NIfTI-1 and NIfTI-2, `.nii` and `.nii.gz`.

Readers of this format usually stop at the last voxel and never compare the gzip checksum, so a flipped bit goes
unnoticed. Here the stream is read to its end, in bounded steps, before any of it is used, and the geometry in the
header is checked. A file is written completely or not at all.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from fheat.io.volume import MILLIMETRES, Volume, geometry_fault
from fheat.system.errors import BadInput
from fheat.system.files import open_regular, write_file

SIZE_LIMIT: Final = 8 * 2**30
"""Largest number of bytes of a file's content, unless the caller gives another limit."""
_STEP: Final = 2**20
"""Number of bytes that are unpacked at a time."""
_SECOND_HEADER: Final = 540
"""Number of bytes of a NIfTI-2 header, which begins with this number; a NIfTI-1 header has 348."""
_COPY_AGAIN: Final = "copy it again from its source"
_CHECK: Final = "check how the file was written"


def read_nifti(path: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a scan or a mask with its geometry, or raise `BadInput`.

    Args:
        path: `.nii` or `.nii.gz`.
        limit: largest number of bytes of the content; a larger file is refused before it is held in memory.

    Integer data without scaling keep their type; scaled data become float32. A trailing axis of length one is dropped.
    The affine is the sform, or the qform if there is no sform; metres and micrometres become millimetres.
    """
    file = Path(path)
    try:
        content = _content(file, limit)
        header = _parse(file, content)
        shape = _shape(file, header, len(content), limit)
        return Volume(_voxels(file, header, content, shape), _affine(file, header))
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # nibabel raises many kinds of errors on damaged headers
        if isinstance(error, OSError) and error.strerror is not None:
            raise BadInput(file, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
        reason = str(error).split("\n")[0] or type(error).__name__
        raise BadInput(file, f"is damaged ({reason})", _COPY_AGAIN) from None


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
    write_file(target, _packed(parts) if target.name.endswith(".gz") else parts)


def _stored(header: nibabel.Nifti1Header, data: NDArray[Any]) -> Iterator[bytes]:
    """Yield the content of the file plane by plane, so that there is no second copy of the voxels."""
    start = BytesIO()
    header.write_to(start)
    yield start.getvalue()
    kind = header.get_data_dtype()
    for plane in np.moveaxis(data.reshape(*data.shape[:2], -1, order="F"), -1, 0):
        yield plane.astype(kind, copy=False).tobytes(order="F")


def _packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts compressed with gzip, without a time stamp, so that equal volumes give equal files."""
    packer = zlib.compressobj(3, wbits=31)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def _content(path: Path, limit: int) -> bytearray:
    """Return the content of the file, unpacked in steps and checked against the gzip checksum and the limit."""
    size = path.stat().st_size
    if path.is_dir():
        raise BadInput(path, "is a folder", "give the file in it")
    if not path.name.endswith(".gz"):
        if size > limit:
            raise BadInput(path, f"has {size:,} bytes, over the limit of {limit:,}", "raise the limit if it is meant")
        content = bytearray(size)
        with open_regular(path) as file:
            file.readinto(content)
        return content
    content = bytearray()
    try:
        with open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as stream:
            while part := stream.read(_STEP):
                if len(content) + len(part) > limit:
                    raise BadInput(path, f"unpacks to more than {limit:,} bytes", "raise the limit if it is meant")
                content += part
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise BadInput(path, f"gzip stream is damaged ({error})", _COPY_AGAIN) from None
    return content


def _parse(path: Path, content: bytearray) -> nibabel.Nifti1Header:
    second = (
        int.from_bytes(content[:4], "little") == _SECOND_HEADER or int.from_bytes(content[:4], "big") == _SECOND_HEADER
    )
    kind = nibabel.Nifti2Header if second else nibabel.Nifti1Header
    try:
        header: nibabel.Nifti1Header = kind.from_fileobj(BytesIO(content[:_SECOND_HEADER]))
    except (ImageFileError, HeaderDataError) as error:
        raise BadInput(path, f"is not a NIfTI file ({error})", _CHECK) from None
    return header


def _affine(path: Path, header: nibabel.Nifti1Header) -> NDArray[np.float64]:
    codes = int(header["sform_code"]), int(header["qform_code"])
    if codes == (0, 0):
        raise BadInput(path, "fields sform_code and qform_code are 0: it does not say where it lies", "set its affine")
    unit = header.get_xyzt_units()[0]
    affine = np.diag([*[MILLIMETRES[unit]] * 3, 1.0]) @ np.asarray(header.get_best_affine(), dtype=np.float64)
    fault = geometry_fault(affine)
    if fault is not None:
        raise BadInput(path, f"field affine {fault}", _CHECK)
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    stated = np.asarray(header.get_zooms()[:3], dtype=np.float64) * MILLIMETRES[unit]
    if stated.shape != (3,) or not np.isfinite(stated).all() or not np.allclose(stated, spacing, rtol=1e-2):
        raise BadInput(path, f"field pixdim {stated.tolist()} contradicts the affine's {spacing.tolist()}", _CHECK)
    return affine


def _shape(path: Path, header: nibabel.Nifti1Header, available: int, limit: int) -> tuple[int, ...]:
    """Return the shape without trailing ones, or raise `BadInput` if it needs more bytes than there are or allowed."""
    stated: tuple[int, ...] = header.get_data_shape()
    shape, kind = stated, header.get_data_dtype()
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (3, 4) or 0 in shape:
        raise BadInput(path, f"field dim gives shape {stated}: expected (X, Y, Z) or (X, Y, Z, C)", _CHECK)
    if kind.kind not in "iuf":
        raise BadInput(path, f"field datatype is {kind}: complex and colour images are not scans", _CHECK)
    declared = int(np.prod(shape, dtype=object)) * kind.itemsize
    if declared > min(limit, available):
        raise BadInput(path, f"declares {declared:,} bytes of voxels and holds {available:,} in all", _COPY_AGAIN)
    return shape


def _voxels(path: Path, header: nibabel.Nifti1Header, content: bytearray, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the voxels as a view of the content, or a scaled copy if the header has a scale."""
    slope, intercept = (
        neutral if value is None else value for value, neutral in zip(header.get_slope_inter(), (1.0, 0.0), strict=True)
    )
    if not np.isfinite([slope, intercept]).all():
        raise BadInput(path, f"fields scl_slope, scl_inter are {slope}, {intercept}", _CHECK)
    kind, count = header.get_data_dtype(), int(np.prod(shape, dtype=object))
    data: NDArray[Any] = np.frombuffer(content, kind, count, header.get_data_offset()).reshape(shape, order="F")
    data = data.astype(kind.newbyteorder("="), copy=False)
    if (slope, intercept) != (1.0, 0.0):
        data = _scaled(data, slope, intercept)
    if data.dtype.kind == "f" and not np.isfinite(data.sum(dtype=np.float64)):
        count = int(np.count_nonzero(~np.isfinite(data)))
        raise BadInput(path, f"holds {count:,} voxels that are NaN or infinite", "replace them before using the file")
    return data


def _scaled(stored: NDArray[Any], slope: float, intercept: float) -> NDArray[np.float32]:
    """Return `stored * slope + intercept`, computed plane by plane in double precision."""
    data = np.empty(stored.shape, dtype=np.float32, order="F")
    for plane in range(stored.shape[-1]):
        data[..., plane] = stored[..., plane] * np.float64(slope) + intercept
    return data
