"""From a row of the paper to runs: settings for its dataset, its seeds and the length that is asked for.

A row whose network or method is not registered, or whose dataset is not given, has no runs and says what it needs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from fheat.data.case import Case
from fheat.data.layouts import open_dataset
from fheat.experiments.plan import FULL, ITERATIONS, Plan, remedy
from fheat.experiments.planned import Outcome, PlannedRun
from fheat.experiments.records import DEFAULT_METHOD, PaperDataset, Row, datasets
from fheat.experiments.scoring import Scoring
from fheat.experiments.sweep import word
from fheat.methods.registry import list_methods
from fheat.networks.registry import list_models
from fheat.system.errors import BadInput
from fheat.training.settings import OutputSettings, ScheduleSettings, ValidationSettings
from fheat.training.settings_sources import make_settings

_PROBE, _OPENED, _SPIKED = "research.probe_at", "research.noise_at", "research.spike_at"
_WARM_UP_SHARE: Final = 8
"""A run that is too short for the warm-up of the settings warms up for an eighth of its iterations."""
Split = Literal["validation", "test"]


@dataclass(frozen=True)
class RowPlan:
    """A row with its runs, or with the reason why it has none."""

    row: Row
    iterations: int
    """Length of its runs."""
    needs: str = ""
    """Network or method that is not registered, such as `network transbts`; empty if all are."""
    no_data: bool = False
    runs: tuple[PlannedRun, ...] = ()
    split: Split = "test"
    scans: int = 0
    """Number of scans that are scored."""

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seed of each run."""
        return tuple(run.settings.schedule.seed for run in self.runs)

    @property
    def problem(self) -> str:
        """Why the row cannot run, in words; empty where it can."""
        if self.row.outside:
            return self.row.outside
        if self.needs:
            return f"not available yet (needs {self.needs})"
        return f"no data: {remedy(self.row.dataset)}" if self.no_data else ""

    def done(self, runs: Path) -> dict[int, Outcome]:
        """Return the outcomes of the runs that are done, by seed."""
        outcomes = {seed: run.outcome(runs) for seed, run in zip(self.seeds, self.runs, strict=True)}
        return {seed: outcome for seed, outcome in outcomes.items() if outcome is not None}


def plan_row(row: Row, plan: Plan) -> RowPlan:
    """Return the runs of a row, or what they need; raise `BadInput` where the dataset or the options are at fault."""
    length = plan.length_of(row)
    if row.outside:
        return RowPlan(row, length)
    if needs := missing_parts(row.network, row.method):
        return RowPlan(row, length, needs=needs)
    if row.dataset not in plan.data:
        return RowPlan(row, length, no_data=True)
    split, cases = scored_cases(plan.data[row.dataset])
    runs = tuple(_planned(row, seed, split, plan) for seed in plan.seeds_of(row))
    return RowPlan(row, length, runs=runs, split=split, scans=len(cases))


def missing_parts(network: str, method: str | None = None) -> str:
    """Return the network and the method that are not registered, in words; empty where both are."""
    absent = [] if network in list_models() else [f"network {network}"]
    absent += [] if method is None or method in list_methods() else [f"method {method}"]
    return " and ".join(absent)


def scored_cases(folder: Path) -> tuple[Split, tuple[Case, ...]]:
    """Return the test scans of a dataset or, where it has none with labels, its validation scans."""
    dataset = open_dataset(folder)
    for split in ("test", "validation"):
        cases = tuple(case for case in dataset.split(split) if case.label is not None)
        if cases and len(cases) == len(dataset.split(split)):
            return split, cases
    reason = "has neither labelled test scans nor validation scans to score on"
    raise BadInput(folder, reason, "see docs/reference/data.md")


def _planned(row: Row, seed: int, split: Split, plan: Plan) -> PlannedRun:
    """Return one run of a row. Rows that train alike have runs of one name and key, and so share them."""
    dataset, folder = datasets()[row.dataset], plan.data[row.dataset]
    patch, stride = plan.patch_and_stride(dataset)
    labels = row.labels if plan.tiny is None or row.labels is None else plan.tiny.labels
    length = plan.length_of(row)
    options = options_for(row.options, length)
    smallest = {} if plan.tiny is None else plan.tiny.options(row.network, row.method)
    values: dict[str, Any] = {
        "data.folder": str(folder),
        "data.labelled": labels,
        "data.patch_size": patch,
        "network.name": row.network,
        "method.name": row.method,
        "schedule.seed": seed,
        **_schedule(length),
        **(_protocol(row, dataset) if plan.tiny is None else {}),
        **options,
        **smallest,
    }
    settings = make_settings(values, f"record {row.name}")
    scoring = Scoring(split=split, stride=stride, largest_component=dataset.largest_component)
    place = row.dataset if plan.tiny is None else folder.name  # several datasets share a folder of phantoms
    varied = [f"{option.rpartition('.')[2]}-{word(value)}" for option, value in options.items()]
    words = (place, labels or "all", row.method, row.network, *varied, "seed", seed)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(map(str, words)))
    return PlannedRun(name.lstrip("._-"), settings, scoring)


def _protocol(row: Row, dataset: PaperDataset) -> dict[str, Any]:
    """Return what the protocols on a dataset have in common: methods other than CSE turn and mirror few crops."""
    rival = row.labels is not None and row.method != DEFAULT_METHOD
    return dataset.settings | (dataset.few_labels if rival else {})


def options_for(options: Mapping[str, Any], iterations: int) -> dict[str, Any]:
    """Return the options of a row for a run of another length: what happens at an iteration happens in proportion."""

    def moved(at: int, last: int) -> int:
        return min(max(round(at * iterations / FULL), 1 if at else 0), last)

    scaled = {name: value for name, value in options.items() if name != ITERATIONS}
    if iterations == FULL:
        return scaled
    if _PROBE in scaled:
        scaled[_PROBE] = sorted({moved(at, iterations) for at in scaled[_PROBE]})
    for name in (_OPENED, _SPIKED):
        if name in scaled:
            scaled[name] = moved(scaled[name], iterations - 1)
    return scaled


def _schedule(iterations: int) -> dict[str, int]:
    """Return the length of a run, and what must be rarer or shorter in a short one."""
    warm_up, every, saved = ScheduleSettings().warm_up, ValidationSettings().every, OutputSettings().checkpoint_every
    return {
        "schedule.iterations": iterations,
        "schedule.warm_up": min(warm_up, iterations // _WARM_UP_SHARE),
        "validation.every": min(every, max(iterations // 2, 1)),
        "output.checkpoint_every": min(saved, iterations),
    }
