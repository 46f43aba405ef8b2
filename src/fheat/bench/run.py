"""Run a plan: measure each of its parts and put the results into one record."""

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fheat.bench.forward import (
    PATCHES,
    batch_times,
    growth_over_channels,
    operator_times,
    size_times,
    window_times,
)
from fheat.bench.plan import Networks, Part, Plan, build
from fheat.bench.step import step_times
from fheat.bench.timing import Timer
from fheat.system.machine import machine
from fheat.system.processors import processors
from fheat.system.progress import Watch, silent
from fheat.system.text import grid_name

FORMAT = 1


def run_plan(plan: Plan, command: str, watch: Watch) -> dict[str, Any]:
    """Return the record of a run: plain data, as `bench.json` holds it.

    `results` has a field for each part that was measured; `not_available` has the networks that could not be built and
    why; `load` is the number of processes that were waiting for a processor before the run; `notes` are remarks that a
    reader of the times must know.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    results: dict[str, Any] = {}
    missing: dict[str, str] = {}
    notes: list[str] = []
    precision: dict[str, str] = {}
    rounds: dict[str, int] = {}
    for part in plan.parts:
        with watch(part) as show:
            timer = Timer(
                plan.device, plan.rounds_of(part), plan.precision_of(part), plan.seed, progress=show, notes=notes
            )
            with torch.cuda.device(plan.device) if plan.device.startswith("cuda:") else nullcontext():
                results |= _PARTS[part](plan, timer, missing)
        rounds[part] = timer.rounds
        if part != "read":  # which computes nothing
            precision[part] = timer.precision
    return {
        "format": FORMAT,
        "command": command,
        "unit": "medians of interleaved turns in one process, of a cohort the fastest round; ratios are to the first",
        "seed": plan.seed,
        "machine": machine(plan.device),
        "load": round(load, 2),
        "precision": precision,
        "rounds": rounds,
        "results": results,
        "not_available": missing,
        "notes": notes,
    }


def _networks(plan: Plan, part: Part, missing: dict[str, str]) -> Networks:
    networks = build(plan.models_of(part), plan.patch_of(part), plan.device, plan.seed)
    missing |= networks.missing
    return networks


def _operator(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    patches = (plan.patch,) if plan.patch else PATCHES[:1] if plan.quick else PATCHES
    return {"operator": operator_times(timer, patches, plan.batch_of("operator"))}


def _step(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    rows = []
    for method in plan.methods:
        networks = _networks(plan, "step", missing)  # built anew for each method, because steps change them
        rows.append(step_times(timer, networks, plan.patch_of("step"), plan.batch_of("step"), method))
    return {"step": rows}


def _window(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    patch, batch, growth = plan.patch_of("window"), plan.batch_of("window"), {}
    if plan.sizes or plan.batches or not plan.channels:
        networks = _networks(plan, "window", missing)
    if plan.sizes:
        growth["sizes"] = size_times(timer, networks, plan.sizes, batch)
    if plan.channels_of():
        growth["channels"] = growth_over_channels(timer, plan.channels_of(), batch)
    if plan.batches:
        growth["batches"] = batch_times(timer, networks, patch, plan.batches)
    return growth or {"window": window_times(timer, networks, patch, batch)}


def _scan(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    from fheat.bench.scan import scan_times  # it imports what reads files, which the other parts do not need

    networks = _networks(plan, "scan", missing)
    times = scan_times(
        timer,
        networks,
        plan.scan_of(),
        plan.windows_of(),
        batch=plan.batch_of("scan"),
        longest=plan.longest_scan(),
    )
    return {"scan": times}


def _start(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    from fheat.bench.start import Start, runtime_of, start_times
    from fheat.bench.stored import model_folders, write_scan

    shape, runtime = plan.scan_of(), runtime_of(plan.device)
    with tempfile.TemporaryDirectory() as place:
        models = model_folders(plan.models_of("start"), plan.windows_of(), Path(place), plan.seed)
        missing |= models.missing
        starts = {
            name: Start(
                str(folder),
                write_scan(Path(place) / f"scan-{number}.nii.gz", shape, folder, plan.seed),
                plan.device,
                runtime,
                timer.precision,
                plan.stride,
            )
            for number, (name, folder) in enumerate(models.folders.items())
        }
        times = start_times(starts, timer.rounds, timer.progress or silent, timer.notes)
    if runtime == "torch":
        timer.notes.append("start: OpenVINO is not installed, so torch ran the network and there was nothing to keep")
    return {"start": {"shape": grid_name(shape), "runtime": runtime, "networks": times}}


def _read(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    from fheat.bench.read import read_times
    from fheat.data.layouts import open_dataset
    from fheat.data.phantom import write_phantoms
    from fheat.training.scans import READERS

    cases = plan.cases_of("read")
    with tempfile.TemporaryDirectory() as place:
        if plan.data is None:
            write_phantoms(place, cases, seed=plan.seed, shape=plan.scan_of(), test=0, geometry="canonical")
        return {"read": read_times(timer, open_dataset(plan.data or place), cases, max(READERS, 2))}


def _cohort(plan: Plan, timer: Timer, missing: dict[str, str]) -> dict[str, Any]:
    from fheat.bench.cohort import Cohort, score_times, segment_times, write_cohort
    from fheat.bench.stored import model_folders

    count, shape = plan.cases_of("cohort"), plan.scan_of()
    with tempfile.TemporaryDirectory() as place:
        models = model_folders(plan.models_of("cohort"), plan.windows_of(), Path(place), plan.seed)
        missing |= models.missing
        scans = Cohort(Path(place), count, shape, device=plan.device, precision=timer.precision, stride=plan.stride)
        write_cohort(scans.folder, count, shape)
        networks = {
            name: segment_times(replace(scans, model=str(folder)), timer.rounds, timer.progress or silent)
            for name, folder in models.folders.items()
        }
        scored = score_times(scans, max(processors(), 2))
    return {"cohort": {"scans": count, "shape": grid_name(shape), "networks": networks, **scored}}


_PARTS: dict[Part, Callable[[Plan, Timer, dict[str, str]], dict[str, Any]]] = {
    "operator": _operator,
    "step": _step,
    "window": _window,
    "scan": _scan,
    "start": _start,
    "read": _read,
    "cohort": _cohort,
}
