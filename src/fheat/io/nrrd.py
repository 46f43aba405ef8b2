"""Reading NRRD with attached data, raw or gzip: the format of the original left-atrium release.

The package `nrrd` parses the header; voxels are unpacked here, up to their declared size and to the gzip checksum.
"""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.io.nifti import SIZE_LIMIT
from fheat.io.volume import Volume, geometry_fault
from fheat.system.errors import BadInput
from fheat.system.files import read_capped

_COPY_AGAIN: Final = "copy it again from its source"
_CHECK: Final = "check how the file was written"
_SPACES: Final = {  # sign of each axis of a space, relative to RAS
    "right-anterior-superior": (1.0, 1.0, 1.0),
    "ras": (1.0, 1.0, 1.0),
    "left-anterior-superior": (-1.0, 1.0, 1.0),
    "las": (-1.0, 1.0, 1.0),
    "left-posterior-superior": (-1.0, -1.0, 1.0),
    "lps": (-1.0, -1.0, 1.0),
}
_TYPES: Final = {
    name: kind
    for kind, names in {
        "i1": ("signed char", "int8", "int8_t"),
        "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
        "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
        "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
        "i4": ("int", "signed int", "int32", "int32_t"),
        "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
        "f4": ("float",),
        "f8": ("double",),
    }.items()
    for name in names
}


def read_nrrd(path: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a three-dimensional scan or mask with its geometry, or raise `BadInput`.

    Args:
        path: `.nrrd`, header and voxels in one file.
        limit: largest number of bytes of the voxels; a larger file is refused before they are unpacked.

    Stored types are kept. Coordinates in LPS, LAS or RAS become RAS.
    """
    file = Path(path)
    try:
        import nrrd
    except ImportError:
        raise BadInput(file, "needs the package pynrrd", "install fheat[nrrd]") from None
    try:
        if (size := file.stat().st_size) > limit:
            raise BadInput(file, f"has {size:,} bytes, over the limit of {limit:,}", "raise the limit if it is meant")
        stream = io.BytesIO(read_capped(file, limit))
        header = nrrd.read_header(stream)
        shape, kind = _grid(file, header, limit)
        return Volume(_voxels(file, header, stream, shape, kind), _affine(file, header))
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # pynrrd raises many kinds of errors on damaged headers
        if isinstance(error, OSError) and error.strerror is not None:
            raise BadInput(file, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(file, f"is damaged ({reason})", _COPY_AGAIN) from None


def _grid(path: Path, header: dict[str, Any], limit: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape = tuple(int(size) for size in header["sizes"])
    if len(shape) != 3 or int(header["dimension"]) != 3 or min(shape) < 1:
        raise BadInput(path, f"field sizes gives shape {shape}: expected (X, Y, Z)", _CHECK)
    name = str(header["type"])
    if name not in _TYPES:
        raise BadInput(path, f"field type is {name!r}: not a scan or a mask", _CHECK)
    order = {"little": "<", "big": ">"}.get(str(header.get("endian", "little")).lower())
    if order is None:
        raise BadInput(path, f"field endian is {header['endian']!r}", _CHECK)
    kind = np.dtype(order + _TYPES[name])
    declared = int(np.prod(shape, dtype=object)) * kind.itemsize
    if declared > limit:
        raise BadInput(path, f"declares {declared:,} bytes of voxels, over the limit of {limit:,}", "raise the limit")
    return shape, kind


def _voxels(
    path: Path, header: dict[str, Any], stream: io.BytesIO, shape: tuple[int, ...], kind: np.dtype[Any]
) -> NDArray[Any]:
    for name in ("data file", "datafile", "line skip", "lineskip", "byte skip", "byteskip"):
        if header.get(name):
            raise BadInput(path, f"field {name} is {header[name]!r}: only data right after the header is read", _CHECK)
    size = int(np.prod(shape)) * kind.itemsize
    encoding = str(header["encoding"]).lower()
    if encoding == "raw":
        content = stream.read()
    elif encoding in ("gzip", "gz"):
        try:
            with gzip.GzipFile(fileobj=stream) as unpacked:
                content = unpacked.read(size + 1)  # one byte more, so that the checksum is reached or excess data found
        except (zlib.error, EOFError, gzip.BadGzipFile) as error:
            raise BadInput(path, f"gzip stream is damaged ({error})", _COPY_AGAIN) from None
    else:
        raise BadInput(path, f"field encoding is {encoding!r}: raw and gzip are read", "write it as gzip")
    if len(content) != size:
        held = "more" if len(content) > size else f"{len(content):,}"
        raise BadInput(path, f"declares {size:,} bytes of voxels and holds {held}", _COPY_AGAIN)
    data: NDArray[Any] = np.frombuffer(content, kind).reshape(shape, order="F").astype(kind.newbyteorder("="))
    if kind.kind == "f" and not np.isfinite(data).all():
        count = int(np.count_nonzero(~np.isfinite(data)))
        raise BadInput(path, f"holds {count:,} voxels that are NaN or infinite", "replace them before using the file")
    return data


def _affine(path: Path, header: dict[str, Any]) -> NDArray[np.float64]:
    space = str(header.get("space", "")).lower()
    if space not in _SPACES or "space directions" not in header or "space origin" not in header:
        reason = f"fields space {space!r}, space directions, space origin do not say where it lies"
        raise BadInput(path, reason, "set them to LPS, LAS or RAS")
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(header["space directions"], np.float64).T
    affine[:3, 3] = np.asarray(header["space origin"], np.float64)
    affine = np.diag([*_SPACES[space], 1.0]) @ affine
    fault = geometry_fault(affine)
    if fault is not None:
        raise BadInput(path, f"fields space directions and space origin give an affine that {fault}", _CHECK)
    return affine
