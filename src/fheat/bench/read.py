"""Reading scans: by plain nibabel, in this process, in confined ones, and into the store that crops are taken from."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import nibabel
import numpy as np

from fheat.bench.timing import Candidate, Timer, ratios
from fheat.data.case import Case, Dataset
from fheat.data.classes import classes_of
from fheat.data.preprocessing import Preprocessing
from fheat.data.read import read_image
from fheat.data.store import VolumeStore
from fheat.io import trusting
from fheat.io.confined import ConfinedReader, Kind, reading_threads
from fheat.io.content import SIZE_LIMIT
from fheat.system.text import grid_name
from fheat.training.scans import load_scans

NIBABEL: Final = "nibabel"
TRUSTED: Final = "trusted"
CONFINED: Final = "confined"
_SMALLEST_PATCH: Final = (32, 32, 32)
"""Patch of the crops, up to which scans are padded in the store."""


def read_times(timer: Timer, dataset: Dataset, scans: int, readers: int) -> dict[str, Any]:
    """Return how long the first scans of a dataset take to read, all of them together.

    `seconds` has reading by plain nibabel, where the files are NIfTI, by this process (`trusted`), and by another one
    that is confined; ratios are to the first. `threads_seconds` has the same with `readers` threads, where each thread
    has a confined process of its own. `store_seconds` has the way of training, where confined processes, one or as many
    as `readers`, read images and labels, and the scans are prepared and packed into the store; it is left out, with a
    note, where fewer than two of the scans have labels. `start_s` is what the first confined reading takes more than a
    later one.
    """
    cases = dataset.cases[:scans]
    first = read_image(cases[0])
    alone = timer.times(_ways(cases, lambda read: [read(case) for case in cases]), warm_up=1, capture=False)
    with reading_threads(readers) as pool:
        candidates = _ways(cases, lambda read: list(pool.map(read, cases)))
        together = timer.times(candidates, warm_up=1, capture=False)
    seconds, threads = _in_seconds(alone), _in_seconds(together)
    return {
        "scans": len(cases),
        "shape": grid_name(first.data.shape),
        "first_scan_bytes": first.data.nbytes,
        "seconds": seconds,
        "ratio": ratios(seconds),
        "threads": readers,
        "threads_seconds": threads,
        "threads_ratio": ratios(threads),
        "start_s": start_seconds(cases[0]),
        **_store_times(timer, dataset, cases, readers),
    }


def start_seconds(case: Case) -> float:
    """Return what the first reading by a confined process takes more than the second, once in a run of a program."""
    kind: Kind = "h5" if case.images[0].suffix == ".h5" else "volume"
    seconds = []
    with ConfinedReader() as reader:
        for _ in range(2):
            begin = time.perf_counter()
            reader.read(kind, case.images[0], SIZE_LIMIT, case.files)
            seconds.append(time.perf_counter() - begin)
    return seconds[0] - seconds[1]


def store_of(dataset: Dataset, cases: Sequence[Case], readers: int) -> VolumeStore:
    """Return the store of these scans and their labels, read by so many confined processes as training does it."""
    training = replace(dataset, cases=tuple(replace(case, split="train") for case in cases))
    wanted = Preprocessing.model_validate({"intensity": {"kind": "zscore"}})
    scans = load_scans(training, classes_of(training), wanted, _SMALLEST_PATCH, readers=readers)
    return VolumeStore(scans.volumes)


def _ways(cases: Sequence[Case], read_all: Callable[[Callable[[Case], object]], object]) -> dict[str, Candidate]:
    """Return the candidates by name: each of them reads all cases, and reads a case in its own way."""

    def in_this_process() -> object:
        with trusting():
            return read_all(read_image)

    ways: dict[str, Candidate] = {TRUSTED: in_this_process, CONFINED: partial(read_all, read_image)}
    if all(path.name.endswith((".nii", ".nii.gz")) for case in cases for path in case.images):
        ways = {NIBABEL: partial(read_all, _by_nibabel), **ways}
    return ways


def _by_nibabel(case: Case) -> list[Any]:
    return [_nibabel_voxels(path) for path in case.images]


def _nibabel_voxels(path: Path) -> Any:
    return np.asanyarray(nibabel.load(path).dataobj)  # type: ignore[attr-defined]


def _store_times(timer: Timer, dataset: Dataset, cases: Sequence[Case], readers: int) -> dict[str, Any]:
    labelled = [case for case in cases if case.label is not None]
    if len(labelled) < 2:
        timer.notes.append("read: the scans have no labels, so the way into the store was not timed")
        return {}
    stores: dict[str, Candidate] = {
        f"{number} at a time": partial(store_of, dataset, labelled, number) for number in (1, readers)
    }
    seconds = _in_seconds(timer.times(stores, warm_up=1, capture=False))
    return {"store_scans": len(labelled), "store_seconds": seconds, "store_ratio": ratios(seconds)}


def _in_seconds(milliseconds: dict[str, float]) -> dict[str, float]:
    return {name: value / 1e3 for name, value in milliseconds.items()}
