"""What an item shows: tables, numbers, figures, and notes on how to read them."""

from collections.abc import Sequence
from dataclasses import dataclass

from fheat.experiments.plan import FULL, Plan
from fheat.experiments.records import Item, datasets
from fheat.experiments.results import RowResult
from fheat.experiments.tables import Number, Sheet
from fheat.figures.picture import Picture


@dataclass(frozen=True)
class Presented:
    """The tables, numbers, figures and notes of an item."""

    sheets: tuple[Sheet, ...] = ()
    numbers: tuple[Number, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()


def published_sheet(item: Item, numbers: Sequence[Number], digits: str = ".4g") -> Sheet:
    """Return numbers as a table of quantity, ours and paper."""
    rows = []
    for number in numbers:
        ours = "-" if number.ours.mean is None else format(number.ours.mean, digits)
        ours += "" if number.ours.sd is None else f" ± {format(number.ours.sd, digits)}"
        mean, sd = number.published or (None, None)
        paper = "-" if mean is None else format(mean, digits)
        paper += "" if sd is None else f" ± {format(sd, digits)}"
        rows.append((number.quantity, ours, paper, *([number.state] if number.state else ["done"])))
    return Sheet(item.title, ("quantity", "ours", "paper", "state"), tuple(rows))


def notes_on(item: Item, results: Sequence[RowResult], plan: Plan) -> list[str]:
    """Return what a reader must know to compare our numbers of an item with the published ones."""
    notes = [item.note] if item.note else []
    used = {result.plan.row.dataset: result.plan for result in results if result.outcomes}
    for name, row_plan in used.items():
        title = datasets()[name].title
        if row_plan.split == "test":
            notes.append(f"{title}: scored on the {row_plan.scans} test scans of {plan.data[name].name}.")
        else:
            notes.append(
                f"{title}: {plan.data[name].name} has no labelled test scans, so networks are scored on its "
                f"{row_plan.scans} validation scans, which have also chosen the iteration. The published numbers are "
                "of the official test scans, so they are not of the same scans."
            )
        notes += [datasets()[name].note] if datasets()[name].note else []
    empty = [f"{result.name} {result.undefined}" for result in results if result.undefined]
    if empty:
        notes.append(f"Scans and classes without distances, which are left out of their means: {', '.join(empty)}.")
    if plan.tiny is not None:
        notes.append("Tiny runs on synthetic scans: they show that every step works, and their numbers mean nothing.")
    elif plan.length != FULL:
        notes.append(f"Shortened runs of {plan.length:,} instead of {FULL:,} iterations; they are other runs.")
    return notes
