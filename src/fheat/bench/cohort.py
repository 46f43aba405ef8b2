"""A cohort of scans: segmented in turn and overlapping, and masks scored one and several at a time.

The scans are synthetic bodies with noise. Eight are made, and the others are links to them, as whoever reads one does
not know of the others. Only ratios are claimed.
"""

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat.bench.metered import Found, Order
from fheat.bench.process import environment, run_fresh
from fheat.inference.replay import Precision
from fheat.inference.windows import Triple
from fheat.io import Volume, write_nifti
from fheat.metrics.files import evaluate_files
from fheat.system.progress import Progress, silent

WAYS: Final = ("in turn", "overlap")
DISTINCT: Final = 8
"""Number of scans that differ."""
AFFINE: Final = np.diag([0.8, 0.8, 1.5, 1.0])
KINDS: Final = ("scans", "predicted", "reference")
_SHIFT: Final = 2
"""Voxels by which a mask that stands for a prediction is moved against its reference."""


@dataclass(frozen=True)
class Cohort:
    """Scans, masks and references in one folder, and the model that segments them on their own grid."""

    folder: Path
    count: int
    shape: Triple
    model: str = ""
    device: str = "cpu"
    precision: Precision = "auto"
    stride: Triple | None = None
    """Voxels between windows; by default what the card of the model says."""


def body(shape: Triple, seed: int) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Return a scan of an elliptic body in air with one organ, and the mask of the organ."""
    noise = np.random.default_rng(seed)
    x, y, z = np.ogrid[tuple(slice(-1, 1, length * 1j) for length in shape)]
    at, size = noise.uniform(-0.2, 0.2, 3), noise.uniform(0.2, 0.4, 3)
    bumps = 0.1 * np.sin(9 * x + seed) * np.cos(7 * y) * np.sin(5 * z)
    distance = sum(((axis - middle) / half) ** 2 for axis, middle, half in zip((x, y, z), at, size, strict=True))
    organ = distance < 1 + bumps
    inside = (x / 0.85) ** 2 + (y / 0.65) ** 2 + 0 * z < 1
    data = np.where(organ, 120, np.where(inside, 40, -1000)).astype(np.int16)
    for plane in data:
        plane += noise.normal(0, 20, plane.shape).astype(np.int16)
    return data, organ.astype(np.uint8)


def write_cohort(folder: Path, count: int, shape: Triple) -> None:
    """Write scans, masks that stand for predictions, and their references."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = f"case{number:04d}.nii.gz"
        if number < DISTINCT:
            data, organ = body(shape, number)
            volumes: list[NDArray[Any]] = [data, np.roll(organ, _SHIFT, 0), organ]
            for kind, voxels in zip(KINDS, volumes, strict=True):
                write_nifti(Volume(voxels, AFFINE), folder / kind / name)
            continue
        for kind in KINDS:
            os.link(folder / kind / f"case{number % DISTINCT:04d}.nii.gz", folder / kind / name)


def segment_times(cohort: Cohort, rounds: int = 1, progress: Progress = silent) -> dict[str, Any]:
    """Return what segmenting the cohort takes in each way, and whether all ways give the same masks.

    Each way has a process of its own in each round, and its fastest round counts: seconds, scans per minute, the share
    of the time in which the device was busy with the network, and the peak of the resident memory over the largest
    bound that was printed. `time_of_overlap` is the time of overlapping scans over that of scans in turn.
    """
    rows: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    masks = set()
    for number in range(rounds):
        for place, way in enumerate(WAYS):
            found = _segment(cohort, way)
            rows[way].append(_row(cohort.count, found))
            masks.add(tuple(found["masks"]))
            progress(number * len(WAYS) + place + 1, rounds * len(WAYS))
    best = {way: min(found, key=lambda row: float(row["wall_s"])) for way, found in rows.items()}
    return {
        "segmented": best,
        "time_of_overlap": best["overlap"]["wall_s"] / best["in turn"]["wall_s"],
        "same_masks": len(masks) == 1,
    }


def score_times(cohort: Cohort, workers: int) -> dict[str, Any]:
    """Return what scoring the masks of the cohort takes one and several at a time, and whether the scores are equal."""
    seconds, tables = {}, set()
    for number in (1, workers):
        begin = time.perf_counter()
        table = evaluate_files(
            cohort.folder / "predicted", cohort.folder / "reference", labels={"organ": (1,)}, workers=number
        )
        seconds[number] = time.perf_counter() - begin
        tables.add(table.to_json())
    return {
        "scored": {
            f"{number} at a time": {"wall_s": wall, "cases_per_minute": 60 * cohort.count / wall}
            for number, wall in seconds.items()
        },
        "time_of_several": seconds[workers] / seconds[1],
        "same_scores": len(tables) == 1,
    }


def _segment(cohort: Cohort, way: str) -> Found:
    with tempfile.TemporaryDirectory() as out:
        order = Order(
            model=cohort.model,
            scans=str(cohort.folder / "scans"),
            out=out,
            count=cohort.count,
            shape=list(cohort.shape),
            device=cohort.device,
            precision=cohort.precision,
            stride=None if cohort.stride is None else list(cohort.stride),
            overlap=way == "overlap",
        )
        said = run_fresh(["fheat.bench.metered", json.dumps(order)], environment())
    found: Found = json.loads(said.splitlines()[-1])
    return found


def _row(count: int, found: Found) -> dict[str, Any]:
    wall, peak, bound = found["wall"], found["peak"], found["bound"]
    return {
        "wall_s": wall,
        "scans_per_minute": 60 * count / wall,
        "windows": found["windows"],
        "busy_s": found["busy"],
        "busy_share": found["busy"] / wall,
        "peak_bytes": peak,
        "bound_bytes": bound,
        "peak_over_bound": peak / bound,
    }
