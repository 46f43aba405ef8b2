"""Presentation of an item: tables, numbers, figures, and notes on how to read them."""

from collections.abc import Sequence
from dataclasses import dataclass

from fheat.experiments.plan import FULL, Plan
from fheat.experiments.records import Item, datasets
from fheat.experiments.row_plan import RowPlan
from fheat.experiments.row_result import RowResult
from fheat.experiments.sheet import Number, Sheet, with_deviation
from fheat.figures.picture import Picture
from fheat.system.text import counted


@dataclass(frozen=True)
class Presented:
    """The tables, numbers, figures and notes of an item."""

    sheets: tuple[Sheet, ...] = ()
    numbers: tuple[Number, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()


def published_sheet(item: Item, numbers: Sequence[Number]) -> Sheet:
    """Return numbers as a table of quantity, ours and paper."""
    rows = []
    for number in numbers:
        ours, paper = (number.ours.mean, number.ours.sd), number.published or (None, None)
        cells = [with_deviation(*pair, ".4g") for pair in (ours, paper)]
        rows.append((number.quantity, *cells, number.state or "done"))
    return Sheet(item.title, ("quantity", "ours", "paper", "state"), tuple(rows))


def scored_on(results: Sequence[RowResult]) -> str:
    """Return in a sentence what our scores in a figure are of: scans and iterations; empty where nothing is done."""
    kinds = dict.fromkeys(
        f"{datasets()[result.plan.row.dataset].title}, {_scans(result.plan)} scored, {result.iterations} iterations"
        for result in results
        if result.outcomes
    )
    return f"Ours: {'; '.join(kinds)}." if kinds else ""


def _scans(plan: RowPlan) -> str:
    return counted(plan.scans, f"{plan.split} scan")


def notes_on(item: Item, results: Sequence[RowResult], plan: Plan) -> list[str]:
    """Return what a reader must know to compare our numbers of an item with the published ones."""
    notes = [item.note] if item.note else []
    used = {result.plan.row.dataset: result.plan for result in results if result.outcomes}
    for name, row_plan in used.items():
        title = datasets()[name].title
        if row_plan.split == "test":
            notes.append(f"{title}: scored on the {_scans(row_plan)} of {plan.data[name].name}.")
        else:
            notes.append(
                f"{title}: {plan.data[name].name} has no labelled test scans, so networks are scored on its "
                f"{_scans(row_plan)}, which also chose the iteration. The published numbers are of the official "
                "test scans, so they are not of the same scans."
            )
        notes += [datasets()[name].note] if datasets()[name].note else []
    empty = [f"{result.name} {result.undefined}" for result in results if result.undefined]
    if empty:
        notes.append(f"Scans and classes without distances, which are left out of their means: {', '.join(empty)}.")
    if plan.tiny is not None:
        notes.append("Tiny runs on synthetic scans: they show that every step works, and their numbers mean nothing.")
    elif plan.length != FULL:
        notes.append(
            f"Shortened runs of {plan.length:,} instead of {FULL:,} iterations, and as large a share for methods "
            "with a number of their own; they are other runs."
        )
    return notes
