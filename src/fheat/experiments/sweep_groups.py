"""Runs of a sweep that differ in nothing but their seed, as one row: mean and deviation over seeds, and a test.

Every group is compared with the first one scan by scan. The score of a scan is its mean over classes and seeds, so that
seeds of one scan do not count as several scans; the test is that of `fheat.metrics.statistics`, with Holm's correction.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fheat.experiments.planned import PlannedRun
from fheat.experiments.sheet import Sheet, with_deviation
from fheat.experiments.sweep import SEED
from fheat.metrics.statistics import MeanAndDeviation, holm, mean, moments, signed_rank
from fheat.metrics.table import Table
from fheat.training.checkpoints import flattened

METRICS: Final = ("dice", "hd95")


@dataclass(frozen=True)
class Tested:
    """The comparison of a group with the first one in one metric."""

    scans: int = 0
    """Number of pairs: scans of both groups in which the metric is defined for every class and seed."""
    p: float | None = None
    """p with Holm's correction over all groups and metrics; None for the first group and where there is no pair."""


@dataclass(frozen=True)
class SweepGroup:
    """All seeds of one setting."""

    name: str
    planned: int
    """Number of runs."""
    scores: Mapping[str, MeanAndDeviation]
    """Mean Dice and 95HD of a run: their mean, standard deviation and number over the runs that are done."""
    undefined: int
    """Number of distances that are not defined, and missing in the mean; of cases, classes and seeds."""
    tests: Mapping[str, Tested]


def sweep_groups(runs: Sequence[PlannedRun], tables: Mapping[str, Table]) -> tuple[SweepGroup, ...]:
    """Return the groups in the order of their first runs.

    There are none where no run is done, or where each run differs from the others in more than its seed.

    Args:
        runs: all runs of a sweep.
        tables: scores of the runs that are done, by name.
    """
    members: dict[str, list[PlannedRun]] = {}
    for run in runs:
        others = {name: value for name, value in flattened(run.settings).items() if name != SEED}
        members.setdefault(repr(others), []).append(run)
    if len(members) == len(runs) or not tables:
        return ()
    groups = list(members.values())
    done = [[tables[run.name] for run in group if run.name in tables] for group in groups]
    comparable = [group[0].settings.data.folder == runs[0].settings.data.folder for group in groups]
    tests = [
        {metric: _tested(done[0], one, metric) if number and same else Tested() for metric in METRICS}
        for number, (one, same) in enumerate(zip(done, comparable, strict=True))
    ]
    return tuple(map(_group, groups, done, _with_holm(tests)))


def groups_sheet(groups: Sequence[SweepGroup], unit: str) -> Sheet:
    """Return the groups as a table of words."""
    head = ("runs", "seeds", "Dice", f"95HD {unit}".strip(), "scans", "p Dice", "p 95HD")
    return Sheet("", head, tuple(map(_cells, groups)))


def _cells(group: SweepGroup) -> tuple[str, ...]:
    dice, distance = (group.scores[metric] for metric in METRICS)
    seeds = str(group.planned) if dice.n == group.planned else f"{dice.n} of {group.planned}"
    missing = f" ({group.undefined} undefined)" if group.undefined else ""
    return (
        group.name,
        seeds,
        with_deviation(dice.mean, dice.sd, ".4f"),
        with_deviation(distance.mean, distance.sd) + missing,
        str(group.tests["dice"].scans or "-"),
        *("-" if test.p is None else f"{test.p:.3g}" for test in group.tests.values()),
    )


def _group(runs: Sequence[PlannedRun], tables: Sequence[Table], tests: Mapping[str, Tested]) -> SweepGroup:
    means = {metric: [table.mean(metric) for table in tables] for metric in METRICS}
    return SweepGroup(
        name=_name(runs[0], alone=len(runs) == 1),
        planned=len(runs),
        scores={metric: moments([one for one in each if one is not None]) for metric, each in means.items()},
        undefined=sum(row.scores.hd95 is None for table in tables for row in table.rows),
        tests=tests,
    )


def _name(run: PlannedRun, *, alone: bool) -> str:
    """Return the name of the first run, without the seed that a grid put into it."""
    seed = rf"(^|-)(schedule\.)?seed-{run.settings.schedule.seed}(?=-|$)"
    return run.name if alone else re.sub(seed, "", run.name).strip("-") or "all"


def _scans(tables: Sequence[Table], metric: str) -> dict[str, float]:
    """Return the mean over seeds and classes of every scan that all tables have and in which all values are defined."""
    values: dict[str, list[float | None]] = {}
    for table in tables:
        for row in table.rows:
            values.setdefault(row.case, []).append(row.scores[metric])
    full = sum(len(table.labels) for table in tables)
    known = {case: [one for one in each if one is not None] for case, each in values.items()}
    return {case: mean(each) for case, each in known.items() if len(each) == full}


def _tested(first: Sequence[Table], second: Sequence[Table], metric: str) -> Tested:
    before, after = _scans(first, metric), _scans(second, metric)
    differences = [after[case] - before[case] for case in before if case in after]
    return Tested(len(differences), signed_rank(differences))


def _with_holm(tests: Sequence[Mapping[str, Tested]]) -> list[dict[str, Tested]]:
    corrected = iter(holm([one.p for each in tests for one in each.values() if one.p is not None]))
    return [
        {metric: one if one.p is None else replace(one, p=next(corrected)) for metric, one in each.items()}
        for each in tests
    ]
