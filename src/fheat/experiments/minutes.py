"""How long the runs of the paper take, estimated before they begin.

The estimate is that of `fheat.training.estimate`; where runs of the same network and method are done already, their own
speed is taken instead. Reading, validation and scoring come on top.
"""

from collections.abc import Iterable
from statistics import median

from fheat.experiments.plan import Plan
from fheat.experiments.planned import Outcome
from fheat.experiments.records import Row, datasets
from fheat.training.estimate import Device, stored_speed
from fheat.training.settings import DataSettings

Measured = dict[tuple[str, str, str], float]
"""Iterations per second of runs that are done, by device, network and method."""


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
    return None if per_second is None else plan.length_of(row) / per_second / 60


def _stored_speed(row: Row, plan: Plan, device: Device) -> float | None:
    patch, _ = plan.patch_and_stride(datasets()[row.dataset])
    return stored_speed(row.network, row.method, patch, int(DataSettings.model_fields["batch"].default), device)
