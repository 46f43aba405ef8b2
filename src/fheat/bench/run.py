"""Run a plan: measure each of its parts and put the results into one record."""

import os
from collections.abc import Callable
from contextlib import nullcontext
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
from fheat.system.progress import Watch

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
        precision[part], rounds[part] = timer.precision, timer.rounds
    return {
        "format": FORMAT,
        "command": command,
        "unit": "medians of interleaved turns in one process; ratios are to the first network",
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


_PARTS: dict[Part, Callable[[Plan, Timer, dict[str, str]], dict[str, Any]]] = {
    "operator": _operator,
    "step": _step,
    "window": _window,
    "scan": _scan,
}
