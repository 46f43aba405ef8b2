"""Reader of the header of a NIfTI file: a header is refused where its fields contradict each other.

The rules are listed in docs/reference/data.md. nibabel knows the fields; its own checks repair some and print others,
so that all of them are made here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nibabel
import numpy as np
from numpy.typing import NDArray

from fheat.io.content import CHECK_WRITER, Content
from fheat.io.volume import MILLIMETRES, corner_distance, geometry_fault
from fheat.system.errors import BadInput

Affine = NDArray[np.float64]
_KINDS: Final[dict[int, tuple[Any, bytes]]] = {
    348: (nibabel.Nifti1Header, b"n+1\0"),
    540: (nibabel.Nifti2Header, b"n+2\0\r\n\x1a\n"),
}
"""Fields and magic of a header by its number of bytes, with which it begins."""
_PAIRS: Final = (b"ni1\0", b"ni2\0\r\n\x1a\n")
_FLAG: Final = 4
"""Number of bytes after the header whose first one says whether extensions follow."""
_LARGEST_OFFSET: Final = 2**24
_LARGEST_CODE: Final = 5
_LARGEST_TIME_UNIT: Final = 48
_UNITS: Final = ("unknown", "meter", "mm", "micron")
_SPACING_TOLERANCE: Final = 0.01
"""Relative difference of pixdim and the affine up to which they agree."""
_VOXEL_PART: Final = 0.25
_DIAGONAL_PART: Final = 1e-3
"""sform and qform agree where no corner differs by more than these parts of the smallest voxel and of the diagonal,
together. The quaternion of a qform has 32-bit floats and is this inexact near half a turn."""


@dataclass(frozen=True)
class NiftiHeader:
    """The voxels' shape, stored type and scale, where they begin, and the affine in millimetres."""

    shape: tuple[int, ...]
    kind: np.dtype[Any]
    scale: tuple[float, float]
    """Slope and intercept; (1, 0) where the values are not scaled."""
    offset: int
    affine: Affine

    @property
    def voxel_bytes(self) -> int:
        """Number of bytes of all voxels."""
        return int(np.prod(self.shape, dtype=object)) * self.kind.itemsize


def read_header(content: Content) -> NiftiHeader:
    """Read and check the header, and the extensions up to the first voxel, or raise `BadInput`."""
    path = content.path
    fields, size = _fields(content)
    shape, kind = _grid(path, fields)
    offset = _offset(path, fields, size + _FLAG)
    header = NiftiHeader(shape, kind, _scale(path, fields), offset, _affine(path, fields, shape))
    _skip_extensions(content, content.take(_FLAG, "the header"), offset - size - _FLAG, fields.endianness)
    return header


def _fields(content: Content) -> tuple[nibabel.Nifti1Header, int]:
    """Return the fields in the byte order in which the header begins with its length, and that length."""
    start = content.take(4, "the header")
    for order, code in (("little", "<"), ("big", ">")):
        size = int.from_bytes(start, order)  # type: ignore[arg-type]
        if size in _KINDS:
            kind, magic = _KINDS[size]
            block = bytes(start + content.take(size - 4, "the header"))
            found = block[344:348] if size == 348 else block[4:12]
            if found in _PAIRS:
                raise BadInput(content.path, "field magic says that its voxels are in another file", "write one .nii")
            if found != magic:
                raise BadInput(
                    content.path, f"is not a NIfTI file: field magic is {found!r}, not {magic!r}", CHECK_WRITER
                )
            return kind(block, code, check=False), size
    reason = f"is not a NIfTI file: field sizeof_hdr is {int.from_bytes(start, 'little')}, not 348 or 540"
    raise BadInput(content.path, reason, CHECK_WRITER)


def _grid(path: Path, fields: nibabel.Nifti1Header) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape without trailing ones, and the type of the voxels."""
    axes, *lengths = (int(length) for length in fields["dim"])
    if not 1 <= axes <= 7:
        raise BadInput(path, f"field dim[0] is {axes}: an image has 1 to 7 axes", CHECK_WRITER)
    shape = stated = tuple(lengths[:axes])
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (3, 4) or min(shape) < 1:
        raise BadInput(path, f"field dim gives shape {stated}: expected (X, Y, Z) or (X, Y, Z, C)", CHECK_WRITER)
    code, bits = int(fields["datatype"]), int(fields["bitpix"])
    if code not in nibabel.nifti1.data_type_codes.dtype:
        raise BadInput(path, f"field datatype is {code}, which stands for no type", CHECK_WRITER)
    kind = fields.get_data_dtype()
    if kind.kind not in "iuf":
        raise BadInput(path, f"field datatype is {kind}: complex and colour images are not scans", CHECK_WRITER)
    if bits != 8 * kind.itemsize:
        raise BadInput(
            path, f"field bitpix is {bits}, field datatype {code} has {8 * kind.itemsize} bits", CHECK_WRITER
        )
    return shape, kind


def _offset(path: Path, fields: nibabel.Nifti1Header, least: int) -> int:
    offset = float(fields["vox_offset"])
    if not (least <= offset <= _LARGEST_OFFSET and offset.is_integer()):
        reason = f"field vox_offset is {offset:g}, not a whole number from {least} to {_LARGEST_OFFSET}"
        raise BadInput(path, reason, CHECK_WRITER)
    return int(offset)


def _scale(path: Path, fields: nibabel.Nifti1Header) -> tuple[float, float]:
    """Return slope and intercept; a slope of 0, and NaN in both as nibabel writes it, mean that there is no scale."""
    slope, intercept = float(fields["scl_slope"]), float(fields["scl_inter"])
    if np.isnan([slope, intercept]).all():
        return 1.0, 0.0
    if not np.isfinite([slope, intercept]).all():
        raise BadInput(path, f"fields scl_slope, scl_inter are {slope:g}, {intercept:g}", CHECK_WRITER)
    return (1.0, 0.0) if slope == 0 else (slope, intercept)


def _skip_extensions(content: Content, flag: bytearray, size: int, order: str) -> None:
    """Read what lies between the header and the voxels: a chain of extensions where the flag is set, else zeros."""
    rest = content.take(size, "its extensions")
    place = 0
    while flag[0] and size - place >= 8 and any(rest[place : place + 8]):
        length = int.from_bytes(rest[place : place + 4], "little" if order == "<" else "big")
        if not 8 <= length <= size - place:
            reason = f"an extension of {length:,} bytes is declared where {size - place:,} are left before vox_offset"
            raise BadInput(content.path, reason, CHECK_WRITER)
        place += length
    if any(rest[place:]):
        reason = "field vox_offset leaves bytes before the voxels that are neither extensions nor zero"
        raise BadInput(content.path, reason, CHECK_WRITER)


def _affine(path: Path, fields: nibabel.Nifti1Header, shape: tuple[int, ...]) -> Affine:
    """Return the sform, or the qform where there is no sform, in millimetres."""
    codes = {name: int(fields[f"{name}_code"]) for name in ("sform", "qform")}
    for name, code in codes.items():
        if not 0 <= code <= _LARGEST_CODE:
            raise BadInput(path, f"field {name}_code is {code}, which stands for no space", CHECK_WRITER)
    if not any(codes.values()):
        raise BadInput(path, "fields sform_code and qform_code are 0: it does not say where it lies", "set its affine")
    unit = _millimetres(path, fields)
    stated = np.asarray(fields["pixdim"][1:4], dtype=np.float64) * unit
    if not (np.isfinite(stated).all() and (stated > 0).all()):
        raise BadInput(path, f"field pixdim gives the spacing {stated.tolist()}: it must be above 0", CHECK_WRITER)
    scale = np.diag([unit, unit, unit, 1.0])
    forms = {name: scale @ _form(path, fields, name) for name, code in codes.items() if code}
    for name, form in forms.items():
        if fault := geometry_fault(form):
            raise BadInput(path, f"field affine {fault} ({name})", CHECK_WRITER)
    affine = next(iter(forms.values()))
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    if not np.allclose(stated, spacing, rtol=_SPACING_TOLERANCE, atol=0):
        raise BadInput(
            path, f"field pixdim {stated.tolist()} contradicts the affine's {spacing.tolist()}", CHECK_WRITER
        )
    if len(forms) == 2:
        _check_agreement(path, forms["sform"], forms["qform"], shape, spacing)
    return affine


def _millimetres(path: Path, fields: nibabel.Nifti1Header) -> float:
    code = int(fields["xyzt_units"])
    length, time = code % 8, code - code % 8
    if length >= len(_UNITS) or not 0 <= time <= _LARGEST_TIME_UNIT:
        raise BadInput(path, f"field xyzt_units is {code}, which stands for no units", "set it to 2 for millimetres")
    return MILLIMETRES[_UNITS[length]]


def _form(path: Path, fields: nibabel.Nifti1Header, name: str) -> Affine:
    if name == "sform":
        return np.asarray(fields.get_sform(), dtype=np.float64)
    factor = float(fields["pixdim"][0])
    if factor not in (-1.0, 0.0, 1.0):
        raise BadInput(path, f"field pixdim[0] is {factor:g}, not -1, 0 or 1, and the qform needs it", CHECK_WRITER)
    if factor == 0.0:  # the format's old way to write 1
        fields["pixdim"][0] = 1.0
    quaternion = [float(fields[f"quatern_{letter}"]) for letter in "bcd"]
    try:
        return np.asarray(fields.get_qform(), dtype=np.float64)
    except ValueError:
        raise BadInput(path, f"fields quatern_b, c, d are {quaternion}: no rotation", CHECK_WRITER) from None


def _check_agreement(
    path: Path, sform: Affine, qform: Affine, shape: tuple[int, ...], spacing: NDArray[np.float64]
) -> None:
    """Raise `BadInput` where sform and qform put a corner of the grid at different places."""
    apart = corner_distance(sform, qform, shape)
    allowed = _VOXEL_PART * float(spacing.min()) + _DIAGONAL_PART * float(np.linalg.norm(spacing * shape[:3]))
    if apart > allowed:
        reason = f"fields sform and qform are both set and put a corner {apart:.4g} mm apart, over {allowed:.4g} mm"
        places = f"sform {np.round(sform[:3], 4).tolist()}, qform {np.round(qform[:3], 4).tolist()}"
        raise BadInput(path, f"{reason} ({places})", "set the code of the wrong one to 0")
