"""Reading and writing NRRD with attached data, raw or gzip: the format of the original left-atrium release and of 3D
Slicer.

The package `nrrd` parses the header, whose fields must agree with each other (the rules are in
docs/reference/data.md); voxels are unpacked here, up to their declared size and to the gzip checksum. Writing needs no
package.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.io.content import CHECK_WRITER, SIZE_LIMIT, Content, opened, packed
from fheat.io.volume import Volume, as_voxels, check_finite, geometry_fault
from fheat.system.errors import BadInput
from fheat.system.files import write_file

Fields = dict[str, Any]
_LARGEST_HEADER: Final = 2**20
_SPACING_TOLERANCE: Final = 0.01
"""Relative difference of `spacings` and the lengths of `space directions` up to which they agree."""
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
_UNITS: Final = {
    name: millimetres
    for millimetres, names in {
        1.0: ("", "mm", "millimeter", "millimeters", "millimetre", "millimetres"),
        10.0: ("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
        1000.0: ("m", "meter", "meters", "metre", "metres"),
        0.001: ("um", "micron", "microns", "micrometer", "micrometers", "micrometre", "micrometres"),
    }.items()
    for name in names
}
"""Length of a unit in millimetres; no unit means millimetres."""
_USED: Final = (
    *("dimension", "sizes", "type", "endian", "encoding", "kinds", "space", "space dimension", "space units"),
    *("space directions", "space origin", "spacings", "units"),
)
"""Fields that are looked at; in another spelling they would be overlooked."""
_NUMBERS: Final = (b"dimension", b"sizes", b"space dimension", b"space directions", b"space origin", b"spacings")
"""Fields that hold numbers only."""
_WRITTEN: Final = {
    kind: name for name, kind in reversed(_TYPES.items()) if re.fullmatch(r"u?int\d+|float|double", name)
}
"""Name under which each type is written."""
_FIRST_LINE: Final = re.compile(rb"NRRD000[1-5]\r?\n")
_ELSEWHERE: Final = ("data file", "datafile", "line skip", "lineskip", "byte skip", "byteskip")
"""Fields that say that the voxels are not right after the header."""


def read_nrrd(path: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a three-dimensional scan or mask with its geometry, or raise `BadInput`.

    Args:
        path: `.nrrd`, header and voxels in one file.
        limit: largest number of bytes of the voxels; a larger file is refused before they are unpacked.

    Stored types are kept. Coordinates in LPS, LAS or RAS become RAS, and other units millimetres.
    """
    source = Path(path)
    try:
        import nrrd
    except ImportError:
        raise BadInput(source, "needs the package pynrrd", "install fheat[nrrd]") from None
    with opened(source) as file, np.errstate(all="ignore"):
        header = nrrd.read_header(_header_lines(source, file))
        _check_fields(source, header)
        shape, kind = _grid(source, header)
        affine = _affine(source, header)
        declared = int(np.prod(shape, dtype=object)) * kind.itemsize
        if declared > limit:
            reason = f"declares {declared:,} bytes of voxels, over the limit of {limit:,}"
            raise BadInput(source, reason, "raise the limit if it is meant")
        content = Content(source, file, packed=_packed(source, header))
        data = as_voxels(content.voxels(declared), shape, kind)
        check_finite(source, data)
        return Volume(data, affine)


def write_nrrd(volume: Volume, path: str | Path) -> None:
    """Write a volume (X, Y, Z) as `.nrrd`, replacing an older file only once the new one is complete on disk.

    Coordinates are written in LPS, as 3D Slicer does it: diag(-1, -1, 1) times the affine. Numbers of the header have
    all their digits, voxels the first axis fastest and gzip, so that `read_nrrd` returns the same volume.
    """
    target = Path(path)
    if target.suffix != ".nrrd":
        raise BadInput(target, "has no NRRD ending", "name it .nrrd")
    data = volume.data.astype(np.uint8) if volume.data.dtype == np.bool_ else volume.data
    name = _WRITTEN.get(data.dtype.str[1:])
    if data.ndim != 3 or name is None:
        reason = f"cannot hold {data.dtype} of shape {data.shape}"
        raise BadInput(target, reason, "write (X, Y, Z) of whole numbers up to 32 bits or floats")
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ volume.affine
    header = [
        "NRRD0005",
        f"type: {name}",
        "dimension: 3",
        "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, data.shape))}",
        f"space directions: {' '.join(map(_vector, affine[:3, :3].T))}",
        "kinds: domain domain domain",
        "endian: little",
        "encoding: gzip",
        f"space origin: {_vector(affine[:3, 3])}",
    ]

    def parts() -> Iterator[bytes]:
        yield "".join(f"{line}\n" for line in [*header, ""]).encode()
        stored = data.dtype.newbyteorder("<")
        yield from packed(plane.astype(stored, copy=False).tobytes(order="F") for plane in np.moveaxis(data, -1, 0))

    write_file(target, parts())


def _vector(values: NDArray[np.float64]) -> str:
    return f"({','.join(repr(float(value) + 0.0) for value in values)})"


def _header_lines(path: Path, file: IO[bytes]) -> list[bytes]:
    """Read up to the empty line that ends the header, after which the voxels begin."""
    lines: list[bytes] = []
    left = _LARGEST_HEADER
    while line := file.readline(left):
        if not line.isascii() and not line.startswith(b"#") and b":=" not in line:
            raise BadInput(path, f"line {len(lines) + 1} of the header is not plain text", CHECK_WRITER)
        field, _, value = line.partition(b":")
        if field in _NUMBERS and b"_" in value:  # Python reads 1_5 as 15, and nobody else does
            words = " ".join(value.decode("ascii").split())
            raise BadInput(path, f"field {field.decode('ascii')} is {words!r}: not numbers", CHECK_WRITER)
        lines.append(line)
        left -= len(line)
        if not _FIRST_LINE.fullmatch(lines[0]):
            raise BadInput(path, "does not begin with NRRD0001 to NRRD0005", CHECK_WRITER)
        if not line.strip():
            return lines
    raise BadInput(path, f"has no empty line after its header within {_LARGEST_HEADER:,} bytes", CHECK_WRITER)


def _check_fields(path: Path, header: Fields) -> None:
    """Raise `BadInput` for a field in another spelling, and for voxels that are not right after the header."""
    known = {name.replace(" ", ""): name for name in (*_USED, *_ELSEWHERE)}
    for name in header:
        meant = known.get("".join(name.lower().split()))
        if meant is not None and name not in (*_USED, *_ELSEWHERE):
            raise BadInput(path, f"field {name!r} stands for {meant!r}", f"spell it {meant!r}")
    if "dimension" not in header:
        raise BadInput(path, "field dimension is missing", CHECK_WRITER)
    for name in _ELSEWHERE:
        if header.get(name):
            raise BadInput(
                path, f"field {name} is {header[name]!r}: only data right after the header is read", CHECK_WRITER
            )
    for name in ("sizes", "kinds", "space directions", "space origin", "space units", "units", "spacings"):
        if name in header and len(header[name]) != 3:
            raise BadInput(
                path, f"field {name} has {len(header[name])} entries, not one for each of 3 axes", CHECK_WRITER
            )
    for name in ("dimension", "space dimension"):
        if int(header.get(name, 3)) != 3:
            raise BadInput(path, f"field {name} is {header[name]}, not 3", CHECK_WRITER)


def _grid(path: Path, header: Fields) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape = tuple(int(size) for size in header["sizes"])
    if min(shape) < 1:
        raise BadInput(path, f"field sizes gives shape {shape}: expected (X, Y, Z)", CHECK_WRITER)
    kinds = [kind.lower() for kind in header.get("kinds", ())]
    if not set(kinds) <= {"domain", "space"}:
        raise BadInput(path, f"field kinds is {kinds}: the axes of a scan are domain or space", CHECK_WRITER)
    name = str(header["type"])
    if name not in _TYPES:
        raise BadInput(path, f"field type is {name!r}: not a scan or a mask", CHECK_WRITER)
    single = np.dtype(_TYPES[name]).itemsize == 1
    order = {"little": "<", "big": ">"}.get(str(header.get("endian", "little" if single else "missing")).lower())
    if order is None:
        raise BadInput(path, f"field endian is {header.get('endian', 'missing')!r}, not little or big", CHECK_WRITER)
    return shape, np.dtype(order + _TYPES[name])


def _packed(path: Path, header: Fields) -> bool:
    encoding = str(header["encoding"]).lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise BadInput(path, f"field encoding is {encoding!r}: raw and gzip are read", "write it as gzip")
    return encoding != "raw"


def _affine(path: Path, header: Fields) -> NDArray[np.float64]:
    """Return the affine to millimetres in RAS."""
    space = str(header.get("space", "")).lower()
    if space not in _SPACES or "space directions" not in header or "space origin" not in header:
        reason = f"fields space {space!r}, space directions, space origin do not say where it lies"
        raise BadInput(path, reason, "set them to LPS, LAS or RAS")
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(header["space directions"], np.float64).T
    affine[:3, 3] = np.asarray(header["space origin"], np.float64)
    _check_spacings(path, header, affine)
    units = _millimetres(path, header, "space units")
    affine = np.diag([*np.multiply(_SPACES[space], units), 1.0]) @ affine
    fault = geometry_fault(affine)
    if fault is not None:
        raise BadInput(path, f"fields space directions and space origin give an affine that {fault}", CHECK_WRITER)
    return affine


def _millimetres(path: Path, header: Fields, field: str) -> list[float]:
    """Return the length of the unit of each axis in millimetres."""
    names = [str(name).strip().lower().replace("\u00b5", "u") for name in header.get(field, ("mm",) * 3)]
    unknown = [name for name in names if name not in _UNITS]
    if unknown:
        raise BadInput(path, f"field {field} is {unknown[0]!r}, not mm, cm, m or um", "write it in millimetres")
    return [_UNITS[name] for name in names]


def _check_spacings(path: Path, header: Fields, affine: NDArray[np.float64]) -> None:
    """Raise `BadInput` where units and spacings of the axes contradict those of space."""
    if "units" in header:
        own, space = _millimetres(path, header, "units"), _millimetres(path, header, "space units")
        if own != space:
            reason = f"fields units {header['units']} and space units {header.get('space units', 'mm')} differ"
            raise BadInput(path, reason, "write both in millimetres")
    if "spacings" in header:
        stated = np.asarray(header["spacings"], dtype=np.float64)
        spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
        if not np.allclose(np.where(np.isnan(stated), spacing, stated), spacing, rtol=_SPACING_TOLERANCE, atol=0):
            reason = f"field spacings {stated.tolist()} contradicts space directions, {spacing.tolist()}"
            raise BadInput(path, reason, CHECK_WRITER)
