"""The table of a sweep: what each run has different, what came out of it, and which is the best."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fheat.experiments.engine import Failure
from fheat.experiments.planned import Outcome, PlannedRun
from fheat.experiments.scoring import Scoring
from fheat.experiments.sheet import Sheet
from fheat.experiments.sweep import Sweep, shown_value
from fheat.experiments.sweep_groups import SweepGroup, groups_sheet, sweep_groups
from fheat.experiments.worker import claims_of, look_of
from fheat.metrics.table import Table, number
from fheat.system.claims import holder
from fheat.system.files import write_file

CSV, MARKDOWN = "sweep.csv", "sweep.md"
SUMMARY: Final = (
    "Mean ± standard deviation over the seeds. p: against the first line, over the scans that both have, each with its "
    "mean over classes and seeds; two-sided Wilcoxon signed-rank test, Holm's correction over all p."
)


@dataclass(frozen=True)
class SweepRow:
    """One run: its state, the settings in which it differs from others, and its scores once it is done."""

    run: str
    state: str
    varied: Mapping[str, str]
    """Value of each setting that differs between runs, as a word; `-` where the run does not have it."""
    split: str = ""
    """Scans that the scores are of."""
    dice: float | None = None
    """Mean Dice, see `Table.mean`."""
    hd95: float | None = None
    """Mean 95 % Hausdorff distance, see `Table.mean`; cases and classes in which it is not defined are left out."""
    defined: int = 0
    """Number of cases and classes in which distances are defined."""
    scores: int = 0
    """Number of cases and classes."""
    unit: str = ""
    """Unit of the distance."""
    best_validation: float | None = None
    survivors: tuple[str, ...] | None = None
    """Gates that are open at the end; None for a run that is not done or a network without gates."""
    seconds: float | None = None


@dataclass(frozen=True)
class SweepTable:
    """All runs of a sweep in their order; it prints, and it is written as CSV and Markdown."""

    rows: tuple[SweepRow, ...]
    scored: str = ""
    """A sentence that says what the scores are of."""
    groups: tuple[SweepGroup, ...] = ()
    """The runs by everything but their seed; none where no run is done or each differs in more than that."""

    @property
    def best_dice(self) -> str | None:
        """Name of the run with the highest Dice."""
        done = [(row.dice, row.run) for row in self.rows if row.dice is not None]
        return max(done, key=lambda one: one[0])[1] if done else None

    @property
    def best_hd95(self) -> str | None:
        """Name of the run with the lowest 95HD; means over different cases are not compared, so all must have one."""
        done = [(row.hd95, row.run) for row in self.rows if row.hd95 is not None and row.defined == row.scores]
        return min(done, key=lambda one: one[0])[1] if done else None

    @property
    def unit(self) -> str:
        """Unit of the distances, or nothing where no run is done."""
        return next((row.unit for row in self.rows if row.unit), "")

    def sheet(self) -> Sheet:
        """Return the table as text; the best Dice and the best 95HD have a star."""
        head = ("run", *self.rows[0].varied, "Dice", f"95HD {self.unit}".strip(), "survivors", "state")
        width = max(len(f"{row.hd95 or 0:.2f}") for row in self.rows)
        return Sheet("", head, tuple(self._cells(row, width) for row in self.rows))

    def _cells(self, row: SweepRow, width: int) -> tuple[str, ...]:
        dice = number(row.dice) + (" *" if row.run == self.best_dice else "")
        distance = "-" if row.hd95 is None else f"{row.hd95:{width}.2f}" + (" *" if row.run == self.best_hd95 else "")
        if row.defined < row.scores:
            distance += f" (n {row.defined} of {row.scores})"
        survivors = "-" if row.survivors is None else " ".join(row.survivors) or "none"
        return (row.run, *row.varied.values(), dice, distance, survivors, row.state)

    def __str__(self) -> str:
        parts = [self.sheet().text(), self.scored]
        if self.groups:
            parts += ["", groups_sheet(self.groups, self.unit).text(), SUMMARY]
        return "\n".join(parts).rstrip("\n")

    def to_markdown(self) -> str:
        """Return the table in Markdown, with that of the groups below it."""
        text = f"{self.sheet().markdown()}\n\n\\* the best of the runs that are done. {self.scored}\n"
        if self.groups:
            text += f"\n{groups_sheet(self.groups, self.unit).markdown()}\n\n{SUMMARY}\n"
        return text

    def to_csv(self) -> str:
        """Return the table as CSV with full numbers; what does not exist is an empty cell."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.to_json()[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "survivors": " ".join(row["survivors"] or ())} for row in self.to_json())
        return text.getvalue()

    def to_json(self) -> list[dict[str, Any]]:
        """Return one flat mapping per run."""
        return [
            {
                "run": row.run,
                "state": row.state,
                **row.varied,
                "split": row.split,
                "dice": row.dice,
                "hd95": row.hd95,
                "hd95_n": row.defined,
                "n": row.scores,
                "unit": row.unit,
                "best_validation_dice": row.best_validation,
                "survivors": None if row.survivors is None else list(row.survivors),
                "seconds": row.seconds,
            }
            for row in self.rows
        ]

    def write(self, folder: Path) -> None:
        """Write sweep.csv and sweep.md."""
        write_file(folder / CSV, self.to_csv().encode())
        write_file(folder / MARKDOWN, self.to_markdown().encode())


def sweep_table(sweep: Sweep, folder: Path, failures: Sequence[Failure] = ()) -> SweepTable:
    """Return what a folder of runs says about the runs of a sweep now."""
    varied = sweep.varied
    failed = {failure.name for failure in failures}
    tables = {run.name: run.scores(folder) for run in sweep.runs if run.outcome(folder) is not None}
    rows = []
    for run in sweep.runs:
        words = {name: shown_value(values[run.name]) if run.name in values else "-" for name, values in varied.items()}
        rows.append(_row(run, folder, words, tables.get(run.name), failed=run.name in failed))
    return SweepTable(tuple(rows), scored_by(sweep.runs[0].scoring), sweep_groups(sweep.runs, tables))


def scored_by(scoring: Scoring) -> str:
    """Return in a sentence what the scores of a sweep, which has one scoring, are of."""
    scans = f"Dice and 95HD are means over the {scoring.split} scans"
    if scoring.network == "final":
        return f"{scans}, of the network after the last iteration."
    if scoring.split == "validation":
        return f"{scans}, which also chose the network of each run."
    return f"{scans}, of the network with the best validation Dice."


def _row(run: PlannedRun, folder: Path, varied: Mapping[str, str], table: Table | None, *, failed: bool) -> SweepRow:
    outcome = run.outcome(folder)
    if outcome is None or table is None:
        return SweepRow(run.name, "failed" if failed else _state(run, folder), varied, run.scoring.split)
    return SweepRow(
        run.name,
        "done",
        varied,
        run.scoring.split,
        dice=table.mean("dice"),
        hd95=table.mean("hd95"),
        defined=sum(row.scores.hd95 is not None for row in table.rows),
        scores=len(table.rows),
        unit=table.unit,
        best_validation=outcome.best,
        survivors=_survivors(outcome),
        seconds=outcome.seconds,
    )


def _survivors(outcome: Outcome) -> tuple[str, ...] | None:
    return tuple(outcome.survivors) if outcome.gates else None


def _state(run: PlannedRun, folder: Path) -> str:
    owner = holder(claims_of(run, folder))
    if owner is None:
        return run.state(folder)
    look = look_of(owner)
    how_far = "" if look is None else f", {look.iteration:,} of {look.iterations:,}"
    return f"running on {owner.host}{how_far}"
