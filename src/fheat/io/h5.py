"""Reading the h5 files of the semi-supervised papers: a dataset `image`, perhaps a dataset `label`, no geometry.

The HDF5 library is known to write past its buffers on malformed files, so it never runs in this process, not even for
trusted files: `fheat.io.confined` has another process do what is asked here.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.io.confined import read_confined
from fheat.io.content import CHECK_WRITER, SIZE_LIMIT
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.files import open_regular

LARGEST_RATIO: Final = 1100
"""Largest number of bytes that one stored byte may unpack to; gzip reaches 1032."""


def read_h5(
    path: str | Path, *, spacing: Sequence[float] = (1.0, 1.0, 1.0), limit: int = SIZE_LIMIT
) -> tuple[Volume, Volume | None]:
    """Read image and label (None if the file has no label), or raise `BadInput`.

    Args:
        path: file with the dataset `image` (X, Y, Z) and perhaps `label` of the same shape.
        spacing: distance of voxels in millimetres, which the format does not store. The axes are assumed to point
            right, anterior, superior.
        limit: largest number of bytes of voxels; a file that declares more is refused.

    Stored types are kept (bool becomes uint8).
    """
    file = Path(path)
    arrays = read_confined("h5", file, limit).arrays
    for name, data in arrays.items():
        if data.ndim != 3:
            raise BadInput(file, f"field {name} has shape {data.shape}: expected (X, Y, Z)", CHECK_WRITER)
        if data.dtype.kind == "f" and not np.isfinite(data).all():
            count = int(np.count_nonzero(~np.isfinite(data)))
            raise BadInput(file, f"field {name} holds {count:,} voxels that are NaN or infinite", CHECK_WRITER)
    image, label = arrays["image"], arrays.get("label")
    affine = np.diag([*map(float, spacing), 1.0])
    if label is None:
        return Volume(image, affine), None
    if label.shape != image.shape:
        raise BadInput(file, f"field label has shape {label.shape}, the image {image.shape}", CHECK_WRITER)
    return Volume(image, affine), Volume(label, affine)


def parse_h5(path: str, limit: int) -> dict[str, NDArray[Any]]:
    """Return the arrays `image` and, if there is one, `label`, contiguous and in native byte order.

    It runs in the process of the file alone. Raises `BadInput`, and what h5py raises on damaged files.
    """
    try:
        import h5py
    except ImportError:
        raise BadInput(path, "needs the package h5py", "install fheat[h5]") from None
    try:
        open_regular(path).close()
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        reason = "is damaged" if error.errno is None else "cannot be read"  # an error of the library, or of the system
        text = " ".join(str(error).split()) if error.errno is None else os.strerror(error.errno)
        remedy = "copy it again from its source" if error.errno is None else "check the path and its permissions"
        raise BadInput(path, f"{reason} ({text})", remedy) from None
    with file:
        if "image" not in file:
            raise BadInput(path, f"has no dataset 'image', only {sorted(file)[:8]}", CHECK_WRITER)
        datasets = {name: _plain_dataset(path, file, name) for name in ("image", "label") if name in file}
        declared = sum(data.size * data.dtype.itemsize for data in datasets.values())
        if declared > limit:
            remedy = "raise the limit if it is meant"
            raise BadInput(path, f"declares {declared:,} bytes, over the limit of {limit:,}", remedy)
        for name, data in datasets.items():
            _check_stored(path, name, data)
        arrays = {}
        for name, data in datasets.items():
            native = np.dtype("u1") if data.dtype.kind == "b" else data.dtype.newbyteorder("=")
            arrays[name] = np.empty(data.shape, native)
            data.read_direct(arrays[name])
        return arrays


def _plain_dataset(path: str, file: Any, name: str) -> Any:
    """Return a dataset whose voxels are in this file, or raise `BadInput`: links and external data lead elsewhere."""
    import h5py

    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise BadInput(path, f"field {name} is a link to another place", "write the voxels into the file itself")
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        raise BadInput(path, f"field {name} is a group, not a dataset", CHECK_WRITER)
    if data.is_virtual or data.external:
        raise BadInput(path, f"field {name} is kept in other files", "write the voxels into the file itself")
    if data.dtype.kind not in "iufb" or data.dtype.itemsize > 8:
        raise BadInput(path, f"field {name} has type {data.dtype}: expected integers or floats", CHECK_WRITER)
    if data.shape is None or len(data.shape) != 3 or 0 in data.shape:
        raise BadInput(path, f"field {name} has shape {data.shape}: expected (X, Y, Z)", CHECK_WRITER)
    return data


def _check_stored(path: str, name: str, data: Any) -> None:
    """Raise `BadInput` if voxels are not in the file: HDF5 would make them up, as many as the header declares."""
    declared, stored = data.size * data.dtype.itemsize, int(data.id.get_storage_size())
    if stored * (1 if data.chunks is None else LARGEST_RATIO) < declared:
        raise BadInput(path, f"field {name} declares {declared:,} bytes of voxels and holds {stored:,}", CHECK_WRITER)
    if data.chunks is not None:
        chunks = math.prod(-(-length // step) for length, step in zip(data.shape, data.chunks, strict=True))
        if data.id.get_num_chunks() < chunks:
            raise BadInput(path, f"field {name} holds {data.id.get_num_chunks():,} of {chunks:,} chunks", CHECK_WRITER)
