"""How long runs take, estimated before they begin.

    minutes = iterations x crops x (3 passes with gradients + passes without) x time of a forward pass / 60,000 ms

A pass with gradients counts as three forward passes. The time of a forward pass is a stored measurement, scaled by the
number of voxels; where runs of the same network and method are done already, their own speed is taken instead. Reading,
validation and scoring come on top.
"""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from math import prod
from statistics import median
from typing import Literal

from fheat.experiments.plan import Plan
from fheat.experiments.planned import Outcome
from fheat.experiments.records import Row, datasets
from fheat.methods.registry import method_class
from fheat.system.settings import Section
from fheat.training.settings import DataSettings

Device = Literal["cuda", "cpu"]
DEVICES: tuple[Device, ...] = ("cuda", "cpu")
Measured = dict[tuple[str, str, str], float]
"""Iterations per second of runs that are done, by device, network and method."""


class Speed(Section):
    """Time of one forward pass within training, network by network, on one machine."""

    machine: str
    voxels: int
    """Number of voxels of the crop that was timed."""
    milliseconds: dict[str, float]


@cache
def speeds() -> dict[Device, Speed]:
    """Return the stored speeds by device."""
    content = tomllib.loads((files("fheat.experiments") / "paper" / "speeds.toml").read_text("utf-8"))
    return {device: Speed.model_validate(content[device]) for device in DEVICES}


def measured_speeds(outcomes: Iterable[Outcome]) -> Measured:
    """Return the median speed of finished runs, by device, network and method."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for outcome in outcomes:
        if outcome.per_second:
            device = str(outcome.machine.get("device", "cpu")).partition(":")[0]
            place = device, outcome.settings["network"]["name"], outcome.settings["method"]["name"]
            found.setdefault(place, []).append(outcome.per_second)
    return {place: median(values) for place, values in found.items()}


def run_minutes(row: Row, plan: Plan, device: Device, measured: Measured | None = None) -> float | None:
    """Return how long one run of a row takes, or None for a network that nobody has timed or that does not exist."""
    per_second = (measured or {}).get((device, row.network, row.method))
    if per_second is None:
        per_second = _stored_speed(row, plan, device)
    return None if per_second is None else plan.length / per_second / 60


def _stored_speed(row: Row, plan: Plan, device: Device) -> float | None:
    speed = speeds()[device]
    if row.network not in speed.milliseconds:
        return None
    try:
        with_gradients, without = method_class(row.method).passes
    except ValueError:
        return None
    patch, _ = plan.patch_and_stride(datasets()[row.dataset])
    crops = int(DataSettings.model_fields["batch"].default)
    pass_time = speed.milliseconds[row.network] * prod(patch) / speed.voxels
    return 1000 / (crops * (3 * with_gradients + without) * pass_time)


def shown(minutes: float | None) -> str:
    """Return a time as `3 min` or, from 100 minutes on, as `2 h`; `?` where it is not known."""
    if minutes is None:
        return "?"
    if minutes >= 100:
        return f"{minutes / 60:,.0f} h"
    return f"{minutes:.0f} min" if minutes >= 1 else "under 1 min" if minutes else "0 min"
