"""HDF5 files: bytes where the structure is, declared sizes without voxels, links and types that lead elsewhere."""

import io
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fheat.io.h5 import read_h5
from tests.attack.kinds import Kind, Made, Recipe, contradiction, doubtful, healthy
from tests.attack.mutators.raw import apply_raw, draw_raw

STRUCTURES = ("plain", "packed", "no label", "sparse", "small label", "link", "group", "text", "huge", "nan", "flat")


def _draw(random: Random) -> Recipe:
    structure = random.choice((*STRUCTURES[:3] * 4, *STRUCTURES))
    steps: list[list[Any]] = draw_raw(random) if structure in STRUCTURES[:3] and random.random() < 0.95 else []
    return {"base": {"structure": structure}, "steps": steps}


@cache
def build(structure: str) -> bytes:
    """Return a file of this structure; the first three are healthy."""
    import h5py

    image = (np.arange(120) * 7 % 101).reshape(4, 5, 6).astype(np.float32)
    label = (image > 50).astype(np.uint8)
    stream = io.BytesIO()
    with h5py.File(stream, "w", track_order=False) as file:
        if structure == "packed":
            file.create_dataset("image", data=image, compression="gzip", chunks=(2, 5, 3))
        elif structure in ("sparse", "huge"):
            shape = (700, 700, 700) if structure == "sparse" else (2**20, 2**20, 2**10)
            file.create_dataset("image", shape, "f4", chunks=(64, 64, 64), compression="gzip")
        elif structure == "link":
            file["image"] = h5py.ExternalLink("/etc/hostname", "image")
        elif structure == "group":
            file.create_group("image")
        elif structure == "text":
            file["image"] = "voxels"
        else:
            data = {"nan": image * np.nan, "flat": image[0]}.get(structure, image)
            file.create_dataset("image", data=data, track_times=False)
        if structure not in ("no label", "sparse", "huge"):
            file.create_dataset("label", data=label[1:] if structure == "small label" else label, track_times=False)
    return stream.getvalue()


def _make(recipe: Recipe, folder: Path) -> Made:
    structure = recipe["base"]["structure"]
    content = apply_raw(build(structure), recipe["steps"])
    if recipe["steps"]:
        verdict = doubtful("HDF5 has no checksum")
    elif structure in STRUCTURES[:3]:
        verdict = healthy(structure)
    else:
        verdict = contradiction(structure)
    return Made({"scan.h5": content}, verdict)


def _agrees(found: Any, structure: str) -> bool:
    image, label = found
    expected = (np.arange(120) * 7 % 101).reshape(4, 5, 6)
    if (label is None) != (structure == "no label") or not np.array_equal(image.data, expected):
        return False
    return label is None or np.array_equal(label.data, expected > 50)


KINDS = (Kind("h5", _draw, _make, lambda folder: read_h5(folder / "scan.h5"), _agrees, weight=2),)
