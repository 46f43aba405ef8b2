"""NIfTI-1 and NIfTI-2, plain and packed: header fields, bytes, lengths and gzip streams."""

import struct
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fheat.io import read_volume
from tests.attack.kinds import Kind, Made, Recipe
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.oracles.grids import agrees
from tests.attack.oracles.nifti import FIELDS_1, FIELDS_2, MAGIC, TYPES, judge, judge_packed

SHAPES = ((4, 5, 6), (4, 5, 6, 1), (3, 4, 2, 2), (1, 7, 3))
FORMS = ("both", "sform", "qform")
BOMB = 64 * 2**20
"""Bytes of zeros behind the voxels of a bomb."""


def _draw_base(random: Random, version: int) -> dict[str, Any]:
    return {
        "version": version,
        "order": random.choice("<<<>"),
        "datatype": random.choice((*TYPES, 4, 16)),
        "shape": random.choice((*SHAPES, SHAPES[0])),
        "forms": random.choice(FORMS),
        "units": random.choice((2, 2, 2, 0, 10, 1, 3)),
        "turned": random.random() < 0.3,
        "scaled": random.random() < 0.2,
    }


def _draw_field(random: Random, fields: dict[str, tuple[int, str]]) -> list[Any]:
    name = random.choice(sorted(fields))
    form = fields[name][1]
    if form.endswith("s"):
        return ["field", name, 0, random.choice((b"ni1\0", b"n+1\0", b"n+2\0\r\n\x1a\n", b"\0\0\0\0")).hex()]
    index = random.randrange(int(form[:-1] or 1))
    if form[-1] in "fd":
        value: Any = random.choice(
            ("nan", "inf", "-inf", 0.0, 1.0, -1.0, 0.5, 2.0, 1e30, -1e30, 1e-30, 352.0, 351.5, 544.0, 1e9, 1000.0)
        )
        value = random.uniform(-3, 3) if random.random() < 0.2 else value
    else:
        value = random.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 255, 256, 348, 540, 32767, -1, -32768))
        value = random.choice(sorted(TYPES)) if name == "datatype" else value
    return ["field", name, index, value]


def _draw(version: int):  # type: ignore[no-untyped-def]
    fields = FIELDS_1 if version == 1 else FIELDS_2

    def draw(random: Random) -> Recipe:
        chance = random.random()
        if chance < 0.04:
            steps = []
        elif chance < 0.6:
            steps = [_draw_field(random, fields) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        elif chance < 0.7:
            steps = [["scale", random.choice((0, 1, 2)), random.choice((0.001, 0.1, 0.9, 0.98, 1.02, 1.2, 10, 1000))]]
        else:
            steps = draw_raw(random)
        return {"base": _draw_base(random, version), "steps": steps}

    return draw


def _draw_packed(random: Random) -> Recipe:
    inner = [] if random.random() < 0.8 else _draw(1)(random)["steps"]
    name = random.choice(("stream", "stream", "stream", "member", "bomb", "padding", "none"))
    steps: list[list[Any]] = {
        "stream": draw_raw(random),
        "member": [["member", random.choice(("", "00", random.randbytes(40).hex()))]],
        "bomb": [["bomb"]],
        "padding": [["append", 0, random.choice(("00", "0000" * 8, "1f8b", random.randbytes(9).hex()))]],
        "none": [],
    }[name]
    return {"base": _draw_base(random, 1), "inner": inner, "steps": steps}


def build(base: dict[str, Any]) -> bytes:
    """Return a healthy file: a spacing of 0.5 to 1.5 mm, turned if asked, both affines alike."""
    version, order, shape = base["version"], base["order"], tuple(base["shape"])
    fields, size = (FIELDS_1, 348) if version == 1 else (FIELDS_2, 540)
    unit = {1: 1000.0, 3: 0.001}.get(base["units"], 1.0)
    kind = np.dtype(order + TYPES[base["datatype"]])
    angle = 0.3 if base["turned"] else 0.0
    cosine, sine = np.cos(angle), np.sin(angle)
    spacing = np.array([0.5, 0.75, 1.5]) / unit
    origin = np.array([-31.5, 12.25, 7.0]) / unit
    srow = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]]) * spacing
    values: dict[str, tuple[Any, ...]] = {
        "sizeof_hdr": (size,),
        "magic": (MAGIC[size],),
        "dim": (len(shape), *shape, *[1] * (7 - len(shape))),
        "datatype": (base["datatype"],),
        "bitpix": (8 * kind.itemsize,),
        "pixdim": (1.0, *spacing, 1.0, 1.0, 1.0, 1.0),
        "vox_offset": (size + 4,),
        "scl_slope": (0.5 if base["scaled"] else 1.0,),
        "scl_inter": (-3.0 if base["scaled"] else 0.0,),
        "xyzt_units": (base["units"],),
        "qform_code": (int(base["forms"] != "sform"),),
        "sform_code": (int(base["forms"] != "qform"),),
        "quatern": (0.0, 0.0, np.sin(angle / 2)),
        "qoffset": tuple(origin),
        "srow": tuple(np.column_stack([srow, origin]).ravel()),
    }
    header = bytearray(size + 4)
    for name, value in values.items():
        struct.pack_into(order + fields[name][1], header, fields[name][0], *value)
    count = int(np.prod(shape))
    voxels = (np.arange(count) * 7 % 101).astype(kind)
    return bytes(header) + voxels.tobytes()


def mutate(recipe: Recipe, steps: list[list[Any]]) -> bytes:
    """Return the file after the steps on header fields and bytes."""
    base = recipe["base"]
    content = build(base)
    fields = FIELDS_1 if base["version"] == 1 else FIELDS_2
    data = bytearray(content)
    for name, *arguments in steps:
        if name == "field":
            _set_field(data, fields[arguments[0]], base["order"], *arguments[1:])
        elif name == "scale":
            axis, factor = arguments
            _scale(data, fields["pixdim"], base["order"], 1 + axis, factor)
    return apply_raw(bytes(data), steps)


def _set_field(data: bytearray, place: tuple[int, str], order: str, index: int, value: Any) -> None:
    offset, form = place
    if form.endswith("s"):
        raw = bytes.fromhex(value)[: int(form[:-1])]
        data[offset : offset + len(raw)] = raw
        return
    code, each = form[-1], struct.calcsize(order + form[-1])
    if code in "fd":
        packed = np.array(float(value)).astype(f"{order}f{each}").tobytes()
    else:
        packed = (int(value) % 256**each).to_bytes(each, "little" if order == "<" else "big")
    data[offset + index * each : offset + (index + 1) * each] = packed


def _scale(data: bytearray, place: tuple[int, str], order: str, index: int, factor: float) -> None:
    each = struct.calcsize(order + place[1][-1])
    start = place[0] + index * each
    (value,) = struct.unpack_from(order + place[1][-1], data, start)
    struct.pack_into(order + place[1][-1], data, start, value * factor)


@cache
def _zeros_packed() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(bytes(BOMB)) + packer.flush()


def _make(recipe: Recipe, folder: Path) -> Made:
    content = mutate(recipe, recipe["steps"])
    return Made({"scan.nii": content}, judge(content))


def _make_packed(recipe: Recipe, folder: Path) -> Made:
    packer = zlib.compressobj(6, wbits=31)
    content = packer.compress(mutate(recipe, recipe["inner"])) + packer.flush()
    for name, *arguments in recipe["steps"]:
        if name == "member":
            packer = zlib.compressobj(6, wbits=31)
            content += packer.compress(bytes.fromhex(arguments[0])) + packer.flush()
        elif name == "bomb":
            content += _zeros_packed()
    content = apply_raw(content, recipe["steps"])
    return Made({"scan.nii.gz": content}, judge_packed(content))


KINDS = (
    Kind("nifti", _draw(1), _make, lambda folder: read_volume(folder / "scan.nii"), agrees, weight=8),
    Kind("nifti2", _draw(2), _make, lambda folder: read_volume(folder / "scan.nii"), agrees, weight=3),
    Kind("nifti-gz", _draw_packed, _make_packed, lambda folder: read_volume(folder / "scan.nii.gz"), agrees, weight=6),
)
