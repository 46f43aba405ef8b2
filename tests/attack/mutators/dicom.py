"""DICOM series: elements, missing, doubled and moved slices, mixed series, and bytes of single files."""

import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fheat.io import read_volume
from tests.attack.kinds import Kind, Made, Recipe
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.oracles.dicom import EXACT, LONG, VRS, judge
from tests.attack.oracles.grids import agrees

SLICES = 4
TEXTS = ("", "nan", "inf", "0", "-1", "1e30", "1", "0\\0", "1\\1", "0\\0\\0", "1\\0\\0\\1\\0\\0", "1\\0\\0\\0\\1\\0",
         "1\\0\\0\\0\\0.99\\0.14", "9999999999999999", "abc", "1_5", "1\\1\\1", "900\\900",
         "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99",
         "1.2.840.10008.1.2.4.50", "1.2.3", "MONOCHROME1 ", "RGB ", "PALETTE COLOR ", "\x1b[31mred")  # fmt: skip
NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 32, 64, 255, 1000, 32767, 65535)


def _draw(random: Random) -> Recipe:
    chance = random.random()
    which = random.choice((*range(SLICES), "all"))
    steps: list[list[Any]]
    if chance < 0.04:
        steps = []
    elif chance < 0.4:
        tag = random.choice(sorted(VRS))
        value = random.choice(NUMBERS) if VRS[tag] in ("US", "UL") else random.choice(TEXTS)
        steps = [["element", which, tag, value]]
    elif chance < 0.47:
        steps = [["drop", which, random.choice(sorted(VRS))]]
    elif chance < 0.62:
        name = random.choice(("missing", "twice", "move", "aside", "reverse", "stray", "pixels"))
        steps = [[name, random.randrange(SLICES), random.choice((0.0, 0.00001, 0.3, 1.5, -1.5, 40.0))]]
    else:
        steps = [["file", random.randrange(SLICES)], *draw_raw(random)]
    return {"base": {"signed": random.random() < 0.7, "slope": random.choice(("1", "1", "0.5", "2"))}, "steps": steps}


def _elements(base: dict[str, Any], index: int) -> dict[int, bytes]:
    pixels = (np.arange(20) * 7 + 31 * index) % 101
    return EXACT | {
        0x00020003: f"1.2.3.4.{index}".encode(),
        0x00080018: f"1.2.3.4.{index}".encode(),
        0x00180050: b"1.5",
        0x0020000D: b"1.2.3.5",
        0x0020000E: b"1.2.3.6",
        0x00200013: str(index + 1).encode(),
        0x00200032: f"-31.5\\12.25\\{7 + 1.5 * index}".encode(),
        0x00200037: b"1\\0\\0\\0\\1\\0",
        0x00200052: b"1.2.3.7",
        0x00280010: struct.pack("<H", 5),
        0x00280011: struct.pack("<H", 4),
        0x00280030: b"0.75\\0.5",
        0x00280103: b"\1\0" if base["signed"] else b"\0\0",
        0x00281052: b"-3",
        0x00281053: base["slope"].encode(),
        0x7FE00010: pixels.astype("<i2").tobytes(),
    }


def _file(elements: dict[int, bytes]) -> bytes:
    """Return a file of these elements; the length of the group of meta elements is computed unless it is given."""
    parts = {tag: _packed(tag, value) for tag, value in sorted(elements.items())}
    meta = sum(len(part) for tag, part in parts.items() if tag >> 16 == 2 and tag != 0x00020000)
    if 0x00020000 not in elements:
        parts = {0x00020000: _packed(0x00020000, struct.pack("<I", meta))} | parts
    return bytes(128) + b"DICM" + b"".join(parts.values())


def _packed(tag: int, value: bytes) -> bytes:
    vr = VRS[tag]
    value += (b"\0" if vr == "UI" else b" ") * (len(value) % 2)
    length = struct.pack("<HI", 0, len(value)) if vr in LONG else struct.pack("<H", len(value))
    return struct.pack("<HH", tag >> 16, tag & 0xFFFF) + vr.encode() + length + value


def _series(recipe: Recipe) -> dict[str, bytes]:
    slices = {f"{index:03d}.dcm": _elements(recipe["base"], index) for index in range(SLICES)}
    names = list(slices)
    for name, *arguments in recipe["steps"]:
        chosen = names if arguments[0] == "all" else names[arguments[0] : arguments[0] + 1] if arguments else []
        match name:
            case "element":
                for file in chosen:
                    slices[file][arguments[1]] = _value(*arguments[1:])
            case "drop":
                for file in chosen:
                    slices[file].pop(arguments[1], None)
            case "missing":
                del slices[chosen[0]]
            case "twice":
                slices["again.dcm"] = slices[chosen[0]]
            case "move" | "aside":
                height = 7 + 1.5 * arguments[0] + (arguments[1] if name == "move" else 0.0)
                aside = -31.5 + (arguments[1] if name == "aside" else 0.0)
                slices[chosen[0]][0x00200032] = f"{aside:.6f}\\12.25\\{height:.6f}".encode()
            case "reverse":
                slices = dict(zip(slices, reversed(slices.values()), strict=True))
            case "pixels":
                slices[chosen[0]][0x7FE00010] = bytes(38)
    files = {name: _file(elements) for name, elements in slices.items()}
    steps = recipe["steps"]
    if steps and steps[0][0] == "file":
        chosen_file = names[steps[0][1]]
        files[chosen_file] = apply_raw(files[chosen_file], steps[1:])
    return files


def _value(tag: int, value: Any) -> bytes:
    if isinstance(value, int):
        return struct.pack("<I" if VRS[tag] == "UL" else "<H", value % 2 ** (32 if VRS[tag] == "UL" else 16))
    return str(value).encode()


def _make(recipe: Recipe, folder: Path) -> Made:
    files = _series(recipe)
    verdict = judge(list(files.values()))
    if any(step[0] == "stray" for step in recipe["steps"]):
        files["notes.txt"] = b"not an image"
    return Made({f"series/{name}": content for name, content in files.items()}, verdict)


def _agrees(found: Any, expected: tuple[np.ndarray, np.ndarray]) -> bool:
    return agrees(found, (expected[0].astype(found.data.dtype), expected[1]))


def healthy_series() -> dict[str, bytes]:
    """Return the files of a series without a mutation."""
    return _series({"base": {"signed": True, "slope": "1"}, "steps": []})


KINDS = (Kind("dicom", _draw, _make, lambda folder: read_volume(folder / "series"), _agrees, weight=4),)
