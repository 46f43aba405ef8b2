"""NRRD with attached data, raw or gzip, read from the specification: what does the file say, does it agree with itself?

Source: "Definition of NRRD File Format", teem.sourceforge.net/nrrd/format.html.
"""

import math
import re
from typing import Any

import numpy as np

from tests.attack.kinds import Verdict, contradiction, doubtful, healthy
from tests.attack.oracles.grids import judge_affine
from tests.attack.oracles.nifti import inflate

TYPES = {
    "i1": "signed char|int8|int8_t",
    "u1": "uchar|unsigned char|uint8|uint8_t",
    "i2": "short|short int|signed short|signed short int|int16|int16_t",
    "u2": "ushort|unsigned short|unsigned short int|uint16|uint16_t",
    "i4": "int|signed int|int32|int32_t",
    "u4": "uint|unsigned int|uint32|uint32_t",
    "i8": "longlong|long long|long long int|signed long long|signed long long int|int64|int64_t",
    "u8": "ulonglong|unsigned long long|unsigned long long int|uint64|uint64_t",
    "f4": "float",
    "f8": "double",
}
SIGNS = {
    "right-anterior-superior": (1, 1, 1), "ras": (1, 1, 1),
    "left-anterior-superior": (-1, 1, 1), "las": (-1, 1, 1),
    "left-posterior-superior": (-1, -1, 1), "lps": (-1, -1, 1),
}  # fmt: skip
MILLIMETRES = {"mm": 1.0, "millimeter": 1.0, "cm": 10.0, "m": 1000.0, "um": 0.001, "": 1.0}
ELSEWHERE = ("data file", "datafile", "line skip", "lineskip", "byte skip", "byteskip")
IGNORED = (
    "content", "kinds", "centers", "centerings", "labels", "min", "max", "old min", "old max", "sample units",
    "thicknesses", "number", "block size", "measurement frame", "oldmin", "oldmax", "sampleunits", "blocksize",
)  # fmt: skip
USED = ("dimension", "type", "sizes", "encoding", "endian", "space", "space directions", "space origin", "space units")


class Refused(Exception):  # noqa: N818 - it carries a verdict
    """The verdict on a header that cannot be followed."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict


def judge(content: bytes) -> Verdict:
    """Return the verdict on the content of a `.nrrd` file."""
    try:
        fields, doubts, data = _header(content)
        shape, kind = _grid(fields)
        affine = _affine(fields, shape, doubts)
        voxels = _voxels(fields, shape, kind, data)
    except Refused as refused:
        return refused.verdict
    value = (voxels, affine)
    return doubtful("; ".join(doubts), value) if doubts else healthy(value)


def _refuse(reason: str) -> Refused:
    return Refused(contradiction(reason))


def _header(content: bytes) -> tuple[dict[str, str], list[str], bytes]:
    """Return the fields, doubts about them, and the bytes behind the empty line."""
    if not re.match(rb"NRRD\d{4}\r?\n", content):
        raise _refuse("the first line is not the mark of NRRD")
    doubts = [] if re.match(rb"NRRD000[1-5]\n", content) else ["the version or its line end is unusual"]
    head, gap, data = content.partition(b"\n\n")
    if b"\r" in head or not gap:
        raise Refused(doubtful("line ends of other systems, or no empty line"))
    if any(byte > 126 or byte < 32 for byte in head.replace(b"\n", b"")):
        doubts.append("the header is not plain text")
    fields: dict[str, str] = {}
    for line in head.decode("latin-1").split("\n")[1:]:
        if line.startswith("#"):
            continue
        name, found, value = line.partition(": ")
        if ":=" in line and (not found or line.index(":=") < line.index(": ")):
            continue
        if not found:
            raise Refused(doubtful(f"the line {line!r} is no field"))
        if name in fields:
            raise _refuse(f"field {name} is there twice")
        fields[name] = value
    if "spacings" in fields or "axis mins" in fields:
        doubts.append("spacings beside space directions")
    if unknown := [name for name in fields if name not in (*USED, *IGNORED, *ELSEWHERE)]:
        doubts.append(f"unknown field {unknown[0]}")
    doubts += [f"field {name} is not plain" for name in IGNORED if name in fields]
    doubts += [f"field {name} has spaces around" for name, value in fields.items() if value != value.strip()]
    return {name: value.strip() for name, value in fields.items()}, doubts, data


def _numbers(text: str, kind: type, count: int, field: str) -> list[Any]:
    try:
        values = [kind(word) for word in text.split()]
    except ValueError:
        raise _refuse(f"field {field} is {text!r}") from None
    if len(values) != count or not all(re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?|nan|inf", word, re.I)
                                       for word in text.lower().replace("-inf", "inf").split()):  # fmt: skip
        raise _refuse(f"field {field} is {text!r}")
    return values


def _grid(fields: dict[str, str]) -> tuple[tuple[int, ...], str]:
    for name in ("dimension", "type", "sizes", "encoding"):
        if name not in fields:
            raise _refuse(f"field {name} is missing")
    if any(name in fields for name in ELSEWHERE):
        raise Refused(doubtful("the voxels begin elsewhere"))
    (dimension,) = _numbers(fields["dimension"], int, 1, "dimension")
    if dimension != 3:
        raise _refuse(f"dimension is {dimension}")
    if re.fullmatch(r"[\d. ]*\d\.0[\d. ]*", fields["sizes"]):
        raise Refused(doubtful("sizes are written as fractions"))
    shape = tuple(_numbers(fields["sizes"], int, 3, "sizes"))
    if min(shape) < 1:
        raise _refuse(f"sizes are {shape}")
    kinds = [kind for kind, names in TYPES.items() if fields["type"] in names.split("|")]
    if not kinds:
        lower = [kind for kind, names in TYPES.items() if fields["type"].lower() in names.split("|")]
        raise Refused(doubtful("type in capitals") if lower else contradiction(f"type is {fields['type']!r}"))
    if kinds[0] in ("i8", "u8"):
        raise Refused(doubtful("a type that few programs write"))
    return shape, kinds[0]


def _voxels(fields: dict[str, str], shape: tuple[int, ...], kind: str, data: bytes) -> np.ndarray:
    wide = not kind.endswith("1")
    order = {"little": "<", "big": ">"}.get(fields.get("endian", "").lower())
    if "endian" in fields and order is None:
        raise _refuse(f"endian is {fields['endian']!r}") if wide else Refused(doubtful("endian is not used"))
    encoding = fields["encoding"].lower()
    if encoding in ("gzip", "gz"):
        unpacked = inflate(data, 2**20)
        if isinstance(unpacked, Verdict):
            raise Refused(unpacked)
        if data[3] & 0xE2:
            raise Refused(doubtful("gzip: a flag that few programs know"))
        data = unpacked
    elif encoding != "raw":
        raise _refuse(f"encoding is {encoding!r}")
    declared = math.prod(shape) * np.dtype(kind).itemsize
    if len(data) != declared:
        raise _refuse(f"declares {declared} bytes and holds {len(data)}")
    voxels = np.frombuffer(data, (order or "<") + kind).reshape(shape, order="F")
    if voxels.dtype.kind == "f" and not np.isfinite(voxels).all():
        raise _refuse("voxels are not finite")
    if wide and order is None:
        raise Refused(doubtful("endian is missing"))
    return voxels.astype(voxels.dtype.newbyteorder("="))


def _affine(fields: dict[str, str], shape: tuple[int, ...], doubts: list[str]) -> np.ndarray:
    space = fields.get("space", "")
    if space.lower() not in SIGNS or "space directions" not in fields or "space origin" not in fields:
        raise _refuse("space, space directions or space origin is missing or unknown")
    if space != space.lower() and space.upper() != space:
        doubts.append("space in odd capitals")
    directions = np.array([_vector(text) for text in _vectors(fields["space directions"], 3)])
    origin = _vector(_vectors(fields["space origin"], 1)[0])
    units = _units(fields, doubts)
    affine = np.eye(4)
    affine[:3, :3] = directions.T
    affine[:3, 3] = origin
    affine = np.diag([*units, 1.0]) @ np.diag([*SIGNS[space.lower()], 1.0]) @ affine
    fault = judge_affine(affine, shape)
    if fault is not None and not fault.optional:
        raise Refused(fault)
    if fault is not None:
        doubts.append(fault.reason)
    return affine


def _vectors(text: str, count: int) -> list[str]:
    found = re.findall(r"\([^()]*\)", text)
    if len(found) != count:
        raise _refuse(f"{text!r} is not {count} vectors")
    if re.sub(r"\([^()]*\)", "", text).strip() or ")(" in text or " " in "".join(found):
        raise Refused(doubtful(f"more than vectors in {text!r}"))
    return found


def _vector(text: str) -> list[float]:
    return _numbers(text[1:-1].replace(",", " ") if text.count(",") == 2 else "", float, 3, "space")


def _units(fields: dict[str, str], doubts: list[str]) -> list[float]:
    text = fields.get("space units")
    if text is None:
        return [1.0, 1.0, 1.0]
    names = re.findall(r'"([^"]*)"', text)
    if len(names) != 3 or any(name not in MILLIMETRES for name in names) or re.sub(r'"[^"]*"', "", text).strip():
        raise Refused(doubtful(f"space units are {text!r}") if len(names) == 3 else doubtful("space units are odd"))
    if set(names) != {"mm"}:
        doubts.append("units other than mm")
    return [MILLIMETRES[name] for name in names]
