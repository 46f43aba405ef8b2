"""NRRD, raw and gzip, with attached or detached data: fields of the header, its lines, bytes and gzip streams."""

import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fheat.io import read_volume
from tests.attack.kinds import Kind, Made, Recipe
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.oracles.grids import agrees
from tests.attack.oracles.nrrd import judge

VALUES = {
    "type": ("short", "uchar", "double", "float", "block", "int64", "Short", "string", "", "bool"),
    "dimension": ("2", "4", "0", "-3", "3.0", "99999999999", "", "3 3"),
    "sizes": ("4 5", "4 5 0", "-4 5 6", "4 5 6 1", "99999 99999 99999", "4 5 7", "1 1 1", "4.0 5 6", "4 5 x", "6 5 4"),
    "encoding": ("raw", "gzip", "gz", "bzip2", "ascii", "hex", "zip", "RAW"),
    "endian": ("little", "big", "middle", "", "Little"),
    "space": ("RAS", "LAS", "left-posterior-superior", "scanner-xyz", "3D-right-handed", "", "lps-time", "LPS "),
    "space directions": (
        "(1,0,0) (0,1,0) (0,0,nan)", "(1,0,0) (0,1,0)", "none (1,0,0) (0,1,0)", "(1,0,0) (1,0,0) (0,0,1)",
        "(0,0,0) (0,1,0) (0,0,1)", "(1e30,0,0) (0,1,0) (0,0,1)", "(900,0,0) (0,900,0) (0,0,900)", "(1,0) (0,1) (0,0)",
        "(1,0,0) (0,2,0) (0,0,3)", "1 0 0 0 1 0 0 0 1", "",
    ),
    "space origin": ("(0,0,0)", "(nan,0,0)", "(inf,0,0)", "(0,0)", "0 0 0", "(1e300,0,0)", "", "(1,2,3) (4,5,6)"),
    "space units": (
        '"mm" "mm" "mm"', '"cm" "cm" "cm"', '"um" "um" "um"', '"m" "m" "m"', '"mm" "cm" "mm"',
        '"furlong" "mm" "mm"', "mm",
    ),
    "spacings": ("1 1 1", "2 2 2", "nan nan nan"),
    "kinds": ("domain domain domain", "vector domain domain", "list", "complex domain domain"),
    "space dimension": ("3", "4"),
    "data file": ("other.raw", "/etc/hostname", "../other.raw", "LIST", "other%02d.raw 1 6 1"),
    "byte skip": ("0", "1", "-1", "99999999999"),
    "line skip": ("0", "1", "99999999999"),
    "measurement frame": ("(1,0,0) (0,1,0) (0,0,1)", "(1,0)", "none"),
    "sample units": ("mm", ""),
    "old min": ("0", "x"),
    "number": ("120", "x"),
    "modality": ("CT",),
}  # fmt: skip


def _draw(random: Random) -> Recipe:
    base = {
        "encoding": random.choice(("raw", "gzip")),
        "type": random.choice(("short", "uchar", "float", "int", "ushort", "double")),
        "endian": random.choice(("little", "little", "big")),
        "space": random.choice(("left-posterior-superior", "RAS", "LAS")),
    }
    steps: list[list[Any]] = []
    chance = random.random()
    if 0.04 < chance < 0.65:
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            field = random.choice(sorted(VALUES))
            name = random.choice(("set", "set", "set", "double", "drop"))
            steps.append([name, field, random.choice(VALUES[field])])
    elif 0.65 <= chance < 0.72:
        steps = [[random.choice(("crlf", "upper", "comment", "pair", "bomb", "nogap", "shuffle"))]]
    elif chance >= 0.72:
        steps = draw_raw(random)
    return {"base": base, "steps": steps}


def _fields(base: dict[str, Any]) -> list[list[str]]:
    return [
        ["type", base["type"]],
        ["dimension", "3"],
        ["space", base["space"]],
        ["sizes", "4 5 6"],
        ["space directions", "(0.5,0,0) (0,0.75,0) (0,0,1.5)"],
        ["endian", base["endian"]],
        ["encoding", base["encoding"]],
        ["space origin", "(-31.5,12.25,7)"],
    ]


def _build(recipe: Recipe) -> bytes:
    base = recipe["base"]
    fields = _fields(base)
    order = "<" if base["endian"] == "little" else ">"
    kind = {"short": "i2", "uchar": "u1", "float": "f4", "int": "i4", "ushort": "u2", "double": "f8"}[base["type"]]
    data = (np.arange(120) * 7 % 101).astype(order + kind).tobytes()
    steps = recipe["steps"]
    if any(step[0] == "bomb" for step in steps):
        data += bytes(2**24)
    if base["encoding"] == "gzip":
        packer = zlib.compressobj(6, wbits=31)
        data = packer.compress(data) + packer.flush()
    lines = _lines(fields, steps)
    names = {step[0] for step in steps}
    end = "\r\n" if "crlf" in names else "\n"
    head = end.join(["NRRD0004", *lines, "" if "nogap" in names else end])
    return apply_raw(head.encode("latin-1") + data, steps)


def _lines(fields: list[list[str]], steps: list[list[Any]]) -> list[str]:
    for name, *arguments in steps:
        if name == "set":
            known = [field for field in fields if field[0] == arguments[0]]
            for field in known:
                field[1] = arguments[1]
            if not known:
                fields.append(list(arguments))
        elif name == "double":
            fields.append(list(arguments))
        elif name == "drop":
            fields = [field for field in fields if field[0] != arguments[0]]
        elif name == "shuffle":
            fields = fields[::-1]
        elif name == "upper":
            fields = [[field.upper(), value] for field, value in fields]
    lines = [f"{field}: {value}" for field, value in fields]
    names = {step[0] for step in steps}
    before = ["# a comment: with a colon"] if "comment" in names else []
    after = ["key:=value"] if "pair" in names else []
    return [*before, *lines, *after]


def _make(recipe: Recipe, folder: Path) -> Made:
    content = _build(recipe)
    return Made({"scan.nrrd": content, "other.raw": bytes(960)}, judge(content))


KINDS = (Kind("nrrd", _draw, _make, lambda folder: read_volume(folder / "scan.nrrd"), agrees, weight=6),)
