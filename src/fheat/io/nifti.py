"""NIfTI-1 and NIfTI-2, `.nii` and `.nii.gz`, read to the last checksum and written whole or not at all.

Readers of this format usually stop at the last voxel and never compare the gzip checksum; one flipped bit then goes
unnoticed in most files. Here the stream is read to its end, in bounded steps, before anything is believed, and a header
that parses is not yet a geometry that means something.
"""

import gzip
import zlib
from pathlib import Path
from typing import Any, Final

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from fheat.errors import BadInput
from fheat.files import write_file
from fheat.io.volume import Volume, geometry_fault

SIZE_LIMIT: Final = 8 * 2**30
_STEP: Final = 2**20
_COPY_AGAIN: Final = "copy it again from its source"
_CHECK: Final = "check how the file was written"


def read_nifti(path: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a scan or a mask with its geometry, or raise `BadInput`.

    Args:
        path: `.nii` or `.nii.gz`.
        limit: refuse a file whose content is larger, in bytes, before holding it in memory.

    Integer data without scaling keep their type; scaled data become float32. A trailing axis of length one is dropped.
    """
    file = Path(path)
    try:
        content = _content(file, limit)
        image = _parse(file, content)
        shape = _shape(file, image, len(content), limit)
        return Volume(_voxels(file, image, shape), _affine(file, image))
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # nibabel lets many kinds through on damaged headers
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
    image = nibabel.Nifti1Image(data, volume.affine)
    image.header.set_xyzt_units("mm")
    content = image.to_bytes()
    if target.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=3, mtime=0)
    write_file(target, content)


def _content(path: Path, limit: int) -> bytes:
    """Return the bytes of the image, unpacked in steps and checked against the gzip checksum and the limit."""
    size = path.stat().st_size
    if path.is_dir():
        raise BadInput(path, "is a folder", "give the file in it")
    if not path.name.endswith(".gz"):
        if size > limit:
            raise BadInput(path, f"has {size:,} bytes, over the limit of {limit:,}", "raise the limit if it is meant")
        return path.read_bytes()
    parts: list[bytes] = []
    total = 0
    try:
        with gzip.open(path, "rb") as stream:
            while part := stream.read(_STEP):
                total += len(part)
                if total > limit:
                    raise BadInput(path, f"unpacks to more than {limit:,} bytes", "raise the limit if it is meant")
                parts.append(part)
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise BadInput(path, f"gzip stream is damaged ({error})", _COPY_AGAIN) from None
    return b"".join(parts)


def _parse(path: Path, content: bytes) -> nibabel.Nifti1Image:
    kind = nibabel.Nifti2Image if content[:4] in (b"\x1c\x02\x00\x00", b"\x00\x00\x02\x1c") else nibabel.Nifti1Image
    try:
        return kind.from_bytes(content)
    except (ImageFileError, HeaderDataError) as error:
        raise BadInput(path, f"is not a NIfTI file ({error})", _CHECK) from None


def _affine(path: Path, image: nibabel.Nifti1Image) -> NDArray[np.float64]:
    header = image.header
    codes = int(header["sform_code"]), int(header["qform_code"])
    if codes == (0, 0):
        raise BadInput(path, "fields sform_code and qform_code are 0: it does not say where it lies", "set its affine")
    affine = np.asarray(image.affine, dtype=np.float64)
    fault = geometry_fault(affine)
    if fault is not None:
        raise BadInput(path, f"field affine {fault}", _CHECK)
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    stated = np.asarray(header.get_zooms()[:3], dtype=np.float64)
    if stated.shape != (3,) or not np.isfinite(stated).all() or not np.allclose(stated, spacing, rtol=1e-2):
        raise BadInput(path, f"field pixdim {stated.tolist()} contradicts the affine's {spacing.tolist()}", _CHECK)
    return affine


def _shape(path: Path, image: nibabel.Nifti1Image, available: int, limit: int) -> tuple[int, ...]:
    """Return the shape without trailing ones, once the header's claims fit the limit and the bytes there are."""
    shape, kind = image.shape, image.header.get_data_dtype()
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (3, 4) or 0 in shape:
        raise BadInput(path, f"field dim gives shape {image.shape}: expected (X, Y, Z) or (X, Y, Z, C)", _CHECK)
    if kind.kind not in "iuf":
        raise BadInput(path, f"field datatype is {kind}: complex and colour images are not scans", _CHECK)
    declared = int(np.prod(shape, dtype=object)) * kind.itemsize
    if declared > min(limit, available):
        raise BadInput(path, f"declares {declared:,} bytes of voxels and holds {available:,} in all", _COPY_AGAIN)
    return shape


def _voxels(path: Path, image: nibabel.Nifti1Image, shape: tuple[int, ...]) -> NDArray[Any]:
    stored: Any = image.dataobj
    slope, intercept = float(stored.slope), float(stored.inter)
    if not np.isfinite([slope, intercept]).all():
        raise BadInput(path, f"fields scl_slope, scl_inter are {slope}, {intercept}", _CHECK)
    data: NDArray[Any] = np.asarray(stored.get_unscaled()).reshape(shape)
    data = data.astype(data.dtype.newbyteorder("="), copy=False)
    if (slope, intercept) != (1.0, 0.0):
        data = (data * np.float64(slope) + intercept).astype(np.float32)
    if data.dtype.kind == "f" and not np.isfinite(data).all():
        count = int(np.count_nonzero(~np.isfinite(data)))
        raise BadInput(path, f"holds {count:,} voxels that are NaN or infinite", "replace them before using the file")
    return data
