"""The state of every item before anything is run: what is done, what is missing, and what it would cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fheat.experiments.items.untrained import state_without_training
from fheat.experiments.minutes import Measured, measured_speeds, run_minutes
from fheat.experiments.plan import Plan, remedy
from fheat.experiments.planned import PlannedRun
from fheat.experiments.records import Item, datasets
from fheat.experiments.row_plan import RowPlan, plan_row
from fheat.experiments.sheet import Sheet
from fheat.training.estimate import DEVICES, Device, shown, speeds


@dataclass(frozen=True)
class ItemState:
    """An item with the number of its runs, how many of them are done, and how many minutes all of them take."""

    item: Item
    state: str
    runs: int
    done: int
    minutes: dict[Device, float | None]
    """Time of all runs whose network and method exist, also of those whose data is not given; None if unknown."""
    no_data: tuple[str, ...] = ()
    """Datasets that it needs and that are not given."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        facts = {"item": self.item.name, "title": self.item.title, "state": self.state}
        counts = {"runs": self.runs, "done": self.done, "minutes": dict(self.minutes)}
        return {**facts, **counts, "no_data": {name: remedy(name) for name in self.no_data}}


def overview(items: Iterable[Item], plan: Plan) -> list[ItemState]:
    """Return the state of every item."""
    planned = [(item, [plan_row(row, plan) for row in item.rows]) for item in items]
    outcomes = [outcome for _, plans in planned for one in plans for outcome in one.done(plan.runs).values()]
    measured = measured_speeds(outcomes)
    return [_state(item, plans, plan, measured) for item, plans in planned]


def overview_sheet(states: Sequence[ItemState]) -> Sheet:
    """Return the states as a table."""
    rows = [
        (
            one.item.name,
            one.item.title.partition(": ")[2],
            *(shown(one.minutes[device]) for device in DEVICES),
            one.state,
        )
        for one in states
    ]
    return Sheet("Items", ("item", "what it shows", "GPU", "CPU", "state"), tuple(rows))


def footnotes(states: Sequence[ItemState]) -> list[str]:
    """Return what the times of the table mean, and what to do about each dataset that is not given."""
    missing = dict.fromkeys(name for one in states for name in one.no_data)
    return [_times(), *(f"no data for {datasets()[name].title}: {remedy(name)}" for name in missing)]


def _times() -> str:
    gpu, cpu = (speeds()[device].machine for device in DEVICES)
    return (
        f"Times are estimates for training all runs of an item one after the other, on an {gpu} (GPU) and on {cpu} "
        "(CPU), from stored measurements, or from finished runs in this folder where there are any; rows whose network "
        "or method is not available are not counted, and runs that items share are counted in each."
    )


def _state(item: Item, plans: Sequence[RowPlan], plan: Plan, measured: Measured) -> ItemState:
    runs: dict[str, PlannedRun] = {run.name: run for one in plans for run in one.runs}
    done = sum(run.outcome(plan.runs) is not None for run in runs.values())
    state = _words(plans, len(runs), done) if plans else state_without_training(item, plan)
    minutes = {device: _minutes(plans, plan, device, measured) for device in DEVICES}
    absent = [one.row.dataset for one in plans if one.no_data]
    absent += [item.dataset] if item.dataset and item.dataset not in plan.data else []
    return ItemState(item, state, len(runs), done, minutes, tuple(dict.fromkeys(absent)))


def _minutes(plans: Sequence[RowPlan], plan: Plan, device: Device, measured: Measured) -> float | None:
    """Return the minutes of all rows that exist; each row of a network with its seeds. None where one is not known."""
    total = 0.0
    for one in plans:
        if not one.needs and not one.row.outside:
            minutes = run_minutes(one.row, plan, device, measured)
            if minutes is None:
                return None
            total += minutes * len(plan.seeds_of(one.row))
    return total


def _words(plans: Sequence[RowPlan], runs: int, done: int) -> str:
    """Return the state of an item with rows in words."""
    parts = []
    if runs:
        parts.append("done" if done == runs else f"{done} of {runs} runs done" if done else "not run yet")
    without = [one for one in plans if one.no_data]
    if without:
        names = ", ".join(dict.fromkeys(datasets()[one.row.dataset].title for one in without))
        parts.append(f"no data for {names}" if runs else f"no data ({names})")
    absent = [one for one in plans if one.needs]
    if absent:
        parts.append(f"{_rows(absent, plans)}not available yet (needs {_needs(absent)})")
    outside = [one for one in plans if one.row.outside]
    if outside:
        reasons = ", ".join(dict.fromkeys(one.row.outside for one in outside))
        parts.append(f"{_rows(outside, plans)}each {reasons}")
    return "; ".join(parts)


def _rows(some: Sequence[RowPlan], plans: Sequence[RowPlan]) -> str:
    """Return how many rows of `plans` the words behind it are about, such as `2 rows `; nothing where all are."""
    return "" if len(some) == len(plans) else f"{len(some)} row{'s' if len(some) > 1 else ''} "


def _needs(plans: Sequence[RowPlan]) -> str:
    """Return all networks and methods that are missing, such as `networks a, b and method c`."""
    words = dict.fromkeys(part for one in plans for part in one.needs.split(" and "))
    groups = []
    for kind in ("network", "method"):
        names = [word.removeprefix(f"{kind} ") for word in words if word.startswith(kind)]
        if names:
            groups.append(f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}")
    return " and ".join(groups)
