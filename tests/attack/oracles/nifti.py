"""NIfTI-1 and NIfTI-2 in one file, read from the specification: what does this file say, and does it agree with itself?

Sources: nifti1.h and nifti2.h of the NIfTI Data Format Working Group.
"""

import math
import struct
import zlib
from typing import Any

import numpy as np

from tests.attack.kinds import Verdict, contradiction, doubtful, healthy
from tests.attack.oracles.grids import judge_affine

FIELDS_1 = {
    "sizeof_hdr": (0, "i"), "dim_info": (39, "B"), "dim": (40, "8h"), "intent_p": (56, "3f"), "intent_code": (68, "h"),
    "datatype": (70, "h"), "bitpix": (72, "h"), "slice_start": (74, "h"), "pixdim": (76, "8f"),
    "vox_offset": (108, "f"), "scl_slope": (112, "f"), "scl_inter": (116, "f"), "slice_end": (120, "h"),
    "slice_code": (122, "B"), "xyzt_units": (123, "B"), "cal": (124, "2f"), "slice_duration": (132, "f"),
    "toffset": (136, "f"), "gl": (140, "2i"), "qform_code": (252, "h"), "sform_code": (254, "h"),
    "quatern": (256, "3f"), "qoffset": (268, "3f"), "srow": (280, "12f"), "magic": (344, "4s"),
    "extension": (348, "4B"),
}  # fmt: skip
FIELDS_2 = {
    "sizeof_hdr": (0, "i"), "magic": (4, "8s"), "datatype": (12, "h"), "bitpix": (14, "h"), "dim": (16, "8q"),
    "intent_p": (80, "3d"), "pixdim": (104, "8d"), "vox_offset": (168, "q"), "scl_slope": (176, "d"),
    "scl_inter": (184, "d"), "cal": (192, "2d"), "slice_duration": (208, "d"), "toffset": (216, "d"),
    "slice_start": (224, "q"), "slice_end": (232, "q"), "qform_code": (344, "i"), "sform_code": (348, "i"),
    "quatern": (352, "3d"), "qoffset": (376, "3d"), "srow": (400, "12d"), "slice_code": (496, "i"),
    "xyzt_units": (500, "i"), "intent_code": (504, "i"), "dim_info": (524, "B"), "extension": (540, "4B"),
}  # fmt: skip
TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
"""Types of scans by code. Colours, complex numbers, bits and 128-bit floats are none."""
MILLIMETRES = {0: 1.0, 1: 1000.0, 2: 1.0, 3: 0.001}
MAGIC = {348: b"n+1\0", 540: b"n+2\0\r\n\x1a\n"}
NEAR, FAR = 0.01, 1.0
"""Distances of sform and qform, in voxels, up to which they agree, and from which on they do not."""


def unpack(content: bytes, field: str, size: int, order: str) -> tuple[Any, ...]:
    """Return the values of a field of a header of 348 or 540 bytes."""
    offset, form = (FIELDS_1 if size == 348 else FIELDS_2)[field]
    return struct.unpack_from(order + form, content, offset)


def judge(content: bytes) -> Verdict:
    """Return the verdict on the content of a `.nii` file."""
    found = _endian(content)
    if found is None:
        return contradiction("sizeof_hdr is neither 348 nor 540, or the header is cut off")
    size, order = found
    header = {name: unpack(content, name, size, order) for name in (FIELDS_1 if size == 348 else FIELDS_2)}
    if header["magic"][0] != MAGIC[size]:
        return contradiction(f"magic is {header['magic'][0]!r}")
    grid = _grid(header, size, len(content))
    if isinstance(grid, Verdict):
        return grid
    shape, kind, offset = grid
    stored = np.frombuffer(content, order + kind, math.prod(shape), offset).reshape(shape, order="F")
    voxels = _scaled(header, stored)
    if isinstance(voxels, Verdict):
        return voxels
    affine = _affine(header, shape)
    if isinstance(affine, Verdict):
        return affine
    value = (voxels, affine[0])
    doubt = affine[1] or _oddities(header, size, offset)
    return doubtful(doubt, value) if doubt else healthy(value)


def inflate(content: bytes, limit: int = 2**20) -> bytes | Verdict:
    """Return what a gzip file unpacks to, or the verdict on one that is damaged or unpacks to more than `limit`."""
    parts, rest = [], content
    while True:
        packer = zlib.decompressobj(wbits=31)
        try:
            parts.append(packer.decompress(rest, limit + 1))
        except zlib.error as error:
            return contradiction(f"gzip: {error}")
        if sum(map(len, parts)) > limit:
            return contradiction(f"unpacks to more than {limit:,} bytes")
        if not packer.eof:
            return contradiction("gzip: cut off")
        rest = packer.unused_data
        if not rest:
            return b"".join(parts)
        if not rest.strip(b"\0"):
            return doubtful("gzip: padded with zeros")


def judge_packed(content: bytes) -> Verdict:
    """Return the verdict on the content of a `.nii.gz` file."""
    unpacked = inflate(content)
    if isinstance(unpacked, Verdict):
        return unpacked
    if content[3] & 0xE2:
        return doubtful("gzip: a flag that few programs know", judge(unpacked).value)
    return judge(unpacked)


def _endian(content: bytes) -> tuple[int, str] | None:
    for order in "<>":
        for size in (348, 540):
            if len(content) >= size + 4 and content[:4] == struct.pack(order + "i", size):
                return size, order
    return None


def _grid(header: dict[str, Any], size: int, length: int) -> tuple[tuple[int, ...], str, int] | Verdict:
    count, *lengths = header["dim"]
    if not 1 <= count <= 7:
        return contradiction(f"dim[0] is {count}")
    shape = tuple(lengths[:count])
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (3, 4) or min(shape) < 1:
        return contradiction(f"dim is {header['dim']}")
    kind = TYPES.get(header["datatype"][0])
    if kind is None:
        return contradiction(f"datatype is {header['datatype'][0]}")
    bytes_each = np.dtype(kind).itemsize
    if header["bitpix"][0] != 8 * bytes_each:
        return contradiction(f"bitpix is {header['bitpix'][0]} for {kind}")
    offset = header["vox_offset"][0]
    if not math.isfinite(offset) or offset != int(offset) or offset < size + 4:
        return contradiction(f"vox_offset is {offset}")
    declared = math.prod(shape) * bytes_each
    if int(offset) + declared != length:
        return contradiction(f"has {length} bytes and declares {int(offset)} + {declared}")
    return shape, kind, int(offset)


def _scaled(header: dict[str, Any], stored: np.ndarray) -> np.ndarray | Verdict:
    slope, intercept = header["scl_slope"][0], header["scl_inter"][0]
    if slope == 0 and not math.isfinite(intercept):
        return doubtful("scl_inter is not finite and not used")
    if not math.isfinite(slope) or not math.isfinite(intercept):
        return contradiction(f"scl_slope, scl_inter are {slope}, {intercept}")
    if stored.dtype.kind == "f" and not np.isfinite(stored).all():
        return contradiction("voxels are not finite")
    if slope == 0 or (slope, intercept) == (1, 0):
        return stored.astype(stored.dtype.newbyteorder("="))
    with np.errstate(over="ignore", invalid="ignore"):
        voxels = stored.astype(np.float64) * slope + intercept
        narrow = voxels.astype(np.float32)
    if not np.isfinite(voxels).all():
        return contradiction("scaled voxels are not finite")
    return voxels if np.isfinite(narrow).all() else doubtful("scaled voxels exceed float32", voxels)


def _affine(header: dict[str, Any], shape: tuple[int, ...]) -> tuple[np.ndarray, str] | Verdict:
    """Return the affine in millimetres with a doubt about it, or the verdict."""
    codes = header["sform_code"][0], header["qform_code"][0]
    if not all(0 <= code <= 5 for code in codes):
        return contradiction(f"sform_code, qform_code are {codes}")
    unit = MILLIMETRES.get(header["xyzt_units"][0] & 7)
    if unit is None:
        return contradiction(f"xyzt_units is {header['xyzt_units'][0]}")
    candidates = []
    if codes[0]:
        candidates.append(np.vstack([np.reshape(header["srow"], (3, 4)), [0, 0, 0, 1]]).astype(np.float64))
    if codes[1]:
        turned = _from_quaternion(header)
        if turned is None:
            return contradiction(f"quatern is {header['quatern']}: no rotation, or pixdim is not positive")
        candidates.append(turned)
    if not candidates:
        return contradiction("it does not say where it lies")
    scale = np.diag([unit, unit, unit, 1.0])
    candidates = [scale @ candidate for candidate in candidates]
    for candidate in candidates:
        fault = judge_affine(candidate, shape)
        if fault is not None and not fault.optional:
            return fault
    affine = candidates[0]
    doubts = [fault.reason for candidate in candidates if (fault := judge_affine(candidate, shape)) is not None]
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    stated = np.array(header["pixdim"][1:4], dtype=np.float64) * unit
    if not (stated > 0).all() or not (np.abs(stated / spacing - 1) <= 0.02).all():
        return contradiction(f"pixdim {stated.tolist()} is not the spacing {spacing.tolist()}")
    if (np.abs(stated / spacing - 1) > 0.0005).any():
        doubts.append("pixdim differs slightly from the spacing")
    if len(candidates) == 2:
        apart = _voxels_apart(*candidates, shape) / spacing.min()
        if apart > FAR:
            return contradiction(f"sform and qform are {apart:.3g} voxels apart")
        if apart > NEAR:
            doubts.append("sform and qform differ slightly")
    return affine, "; ".join(doubts)


def _from_quaternion(header: dict[str, Any]) -> np.ndarray | None:
    b, c, d = header["quatern"]
    if not all(map(math.isfinite, header["quatern"])) or not all(size > 0 for size in header["pixdim"][1:4]):
        return None
    rest = 1.0 - (b * b + c * c + d * d)
    if rest < -1e-4:
        return None
    a = math.sqrt(max(rest, 0.0))
    if rest < 0:
        a, norm = 0.0, math.sqrt(b * b + c * c + d * d)
        b, c, d = b / norm, c / norm, d / norm
    rotation = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    handedness = -1.0 if header["pixdim"][0] < 0 else 1.0
    affine = np.eye(4)
    affine[:3, :3] = rotation * np.array([*header["pixdim"][1:3], handedness * header["pixdim"][3]])
    affine[:3, 3] = header["qoffset"]
    return affine


def _voxels_apart(first: np.ndarray, second: np.ndarray, shape: tuple[int, ...]) -> float:
    """Return the largest distance of corresponding corners in millimetres."""
    corners = np.array(np.meshgrid(*((0, length - 1) for length in shape[:3]), [1])).reshape(4, -1)
    return float(np.sqrt((((first - second) @ corners)[:3] ** 2).sum(axis=0)).max())


def _oddities(header: dict[str, Any], size: int, offset: int) -> str:
    """Return what a careful reader may object to although voxels and affine are clear."""
    if header["extension"][0] or (offset > size + 4):
        return "has extensions, or a gap before the voxels"
    if header["qform_code"][0] and header["pixdim"][0] not in (-1.0, 1.0):
        return f"pixdim[0] is {header['pixdim'][0]}, neither 1 nor -1"
    if (header["xyzt_units"][0] & ~7) not in (0, 8, 16, 24, 32, 40, 48):
        return f"xyzt_units is {header['xyzt_units'][0]}"
    return ""
