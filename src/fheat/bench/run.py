"""Measure what a plan says and put it into one record."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fheat.bench.networks import Networks, build
from fheat.bench.operator import PATCHES, operator_times
from fheat.bench.plan import Conditions, Part, Plan
from fheat.bench.step import step_times
from fheat.bench.window import batch_times, growth_over_channels, size_times, window_times
from fheat.system.machine import machine
from fheat.system.progress import Progress

Watch = Callable[[str], AbstractContextManager[Progress]]
FORMAT = 1


def run_plan(plan: Plan, command: str, watch: Watch) -> dict[str, Any]:
    """Return the record of a run: plain data, as `bench.json` holds it.

    `results` has a field for each part that was measured; `not_available` the networks that could not be built and why;
    `load` is how many processes wanted a processor before the run; `notes` what else a reader must know.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    results: dict[str, Any] = {}
    missing: dict[str, str] = {}
    notes: list[str] = []
    precision: dict[str, str] = {}
    rounds: dict[str, int] = {}
    for part in plan.parts:
        with watch(part) as show:
            settings = Conditions(
                plan.device, plan.rounds_of(part), plan.precision_of(part), plan.seed, progress=show, notes=notes
            )
            with torch.cuda.device(plan.device) if plan.device.startswith("cuda:") else nullcontext():
                results |= _PARTS[part](plan, settings, missing)
        precision[part], rounds[part] = settings.precision, settings.rounds
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
    found = build(plan.models_of(part), plan.patch_of(part), plan.device, plan.seed)
    missing |= found.missing
    return found


def _operator(plan: Plan, settings: Conditions, missing: dict[str, str]) -> dict[str, Any]:
    patches = (plan.patch,) if plan.patch else PATCHES[:1] if plan.quick else PATCHES
    return {"operator": operator_times(settings, patches, plan.batch_of("operator"))}


def _step(plan: Plan, settings: Conditions, missing: dict[str, str]) -> dict[str, Any]:
    rows = []
    for method in plan.methods:
        networks = _networks(plan, "step", missing)  # fresh ones, as steps change them
        rows.append(step_times(settings, networks, plan.patch_of("step"), plan.batch_of("step"), method))
    return {"step": rows}


def _window(plan: Plan, settings: Conditions, missing: dict[str, str]) -> dict[str, Any]:
    patch, batch, found = plan.patch_of("window"), plan.batch_of("window"), {}
    if plan.sizes or plan.batches or not plan.channels:
        networks = _networks(plan, "window", missing)
    if plan.sizes:
        found["sizes"] = size_times(settings, networks, plan.sizes, batch)
    if plan.channels_of():
        found["channels"] = growth_over_channels(settings, plan.channels_of(), batch)
    if plan.batches:
        found["batches"] = batch_times(settings, networks, patch, plan.batches)
    return found or {"window": window_times(settings, networks, patch, batch)}


def _scan(plan: Plan, settings: Conditions, missing: dict[str, str]) -> dict[str, Any]:
    from fheat.bench.scan import scan_times  # reads files too, which needs more libraries than the other parts

    networks = _networks(plan, "scan", missing)
    found = scan_times(
        settings,
        networks,
        plan.scan_of(),
        plan.windows_of(),
        batch=plan.batch_of("scan"),
        longest=plan.longest_scan(),
    )
    return {"scan": found}


_PARTS: dict[Part, Callable[[Plan, Conditions, dict[str, str]], dict[str, Any]]] = {
    "operator": _operator,
    "step": _step,
    "window": _window,
    "scan": _scan,
}
