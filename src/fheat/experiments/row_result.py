"""Results of the runs of a row: scores over seeds beside the published ones, and tests between rows.

The score of a seed is the mean over scans. Rows are compared scan by scan, each scan with its mean over the seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fheat.experiments.plan import full_length
from fheat.experiments.planned import Outcome
from fheat.experiments.row_plan import RowPlan
from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES, Scores
from fheat.metrics.significance import Paired, compare
from fheat.metrics.statistics import MeanAndDeviation, holm, mean, moments
from fheat.metrics.table import ScoreRow, Table
from fheat.system.errors import BadInput

IN_PER_CENT: Final = ("dice", "jaccard", "surface_dice")
TITLES: Final = {"dice": "Dice, %", "jaccard": "Jaccard, %", "hd95": "95HD, voxels", "asd": "ASD, voxels"}


@dataclass(frozen=True)
class RowResult:
    """A row with the outcomes and scores of those of its seeds that are done."""

    plan: RowPlan
    outcomes: Mapping[int, Outcome]
    tables: Mapping[int, Table]
    failures: Mapping[int, str] = field(default_factory=dict)
    """Why runs failed, by seed."""

    @property
    def name(self) -> str:
        """Name of the row, such as la-4/fheat-seg."""
        return self.plan.row.name

    def score(self, column: str) -> MeanAndDeviation:
        """Return mean and standard deviation over the seeds of a column such as dice or dice.liver."""
        scores = [score_of(table, column) for table in self.tables.values()]
        return moments([score for score in scores if score is not None])

    @property
    def iterations(self) -> str:
        """Length of the runs in words, such as `4,000 of 16,000` for shortened ones."""
        length, full = self.plan.iterations, full_length(self.plan.row)
        return f"{length:,}" if length == full else f"{length:,} of {full:,}"

    @property
    def scans(self) -> str:
        """Scans that were scored, such as `20 test`."""
        return f"{self.plan.scans} {self.plan.split}" if self.plan.runs else ""

    @property
    def undefined(self) -> int:
        """Number of scans and classes, over all seeds, without distances because a mask is empty."""
        return sum(row.scores.case != "both" for table in self.tables.values() for row in table.rows)

    @property
    def state(self) -> str:
        """State of the row in words."""
        if self.plan.problem:
            return self.plan.problem
        done, wanted = len(self.outcomes), len(self.plan.runs)
        words = "done" if done == wanted else f"{done} of {wanted} runs done" if done else "not run yet"
        failed = "; ".join(f"seed {seed} failed: {reason}" for seed, reason in self.failures.items())
        return f"{words}; {failed}" if failed else words


def row_result(plan: RowPlan, runs: Path, failures: Mapping[str, str]) -> RowResult:
    """Return what is done of a row; `failures` has the reason of each run that failed, by its name."""
    outcomes = plan.done(runs)
    by_seed = dict(zip(plan.seeds, plan.runs, strict=True))
    tables = {seed: by_seed[seed].scores(runs) for seed in outcomes}
    failed = {seed: failures[run.name] for seed, run in by_seed.items() if run.name in failures}
    return RowResult(plan, outcomes, tables, failed)


def score_of(table: Table, column: str) -> float | None:
    """Return a column such as dice or dice.liver of a table, see `Table.mean`; shares are in per cent."""
    metric, _, label = column.partition(".")
    if label and label not in table.labels:
        raise BadInput(table.reference, f"has no class {label}", f"it has {', '.join(table.labels)}")
    score = table.mean(metric, label or None)
    return score if score is None or metric not in IN_PER_CENT else 100 * score


def title_of(column: str) -> str:
    """Return the title of a column, such as `Dice, %` or `liver, Dice, %`."""
    metric, _, label = column.partition(".")
    words = TITLES.get(metric, metric)
    return f"{label.replace('_', ' ')}, {words}" if label else words


def seed_average(tables: Iterable[Table]) -> Table:
    """Return the mean over the tables of several seeds, case by case; one table is returned as it is.

    A distance is averaged over the seeds in which it is defined, and is undefined where no seed has one.
    """
    every = list(tables)
    if len(every) == 1:
        return every[0]
    first = every[0]
    rows = []
    for row in first.rows:
        scores = [table.scores(row.label)[row.case] for table in every]
        rows.append(ScoreRow(row.case, row.label, _mean_scores(scores)))
    return replace(first, rows=tuple(rows), prediction=f"mean over {len(every)} seeds")


def _mean_scores(scores: Sequence[Scores]) -> Scores:
    kinds = [each.case for each in scores]
    values: dict[str, float | None] = {}
    for metric in METRICS:
        defined = [each[metric] for each in scores if each[metric] is not None]
        values[metric] = mean(defined) if defined else None
    assert (values[NEEDS_SURFACES[0]] is not None) == ("both" in kinds)
    return replace(scores[0], **values, case="both" if "both" in kinds else kinds[0])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Difference:
    """Two rows of one setting compared scan by scan, for one metric and class."""

    row: str
    reference: str
    test: Paired
    p_holm: float | None
    """p corrected for all tests of the setting."""


def differences(results: Sequence[RowResult], reference: str, metrics: Sequence[str]) -> list[Difference]:
    """Return the tests of every row of one setting against the reference row, p corrected over all of them.

    Means over cases are of the reference minus the row, so that a positive difference of Dice favours the reference.
    Nothing is compared where the reference is not done.
    """
    done = {result.plan.row.system: seed_average(result.tables.values()) for result in results if result.tables}
    if reference not in done:
        return []
    found: list[Difference] = []
    for system, table in done.items():
        if system != reference:
            tests = compare(table, done[reference], metrics, names=(system, reference)).tests
            found += [Difference(system, reference, test, None) for test in tests]
    corrected = iter(holm([one.test.p for one in found if one.test.p is not None]))
    return [one if one.test.p is None else replace(one, p_holm=next(corrected)) for one in found]
