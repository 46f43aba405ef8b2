"""The paper by command: run what is missing of its tables and figures, and show ours beside the published numbers.

    for shown in reproduce(["table2"], data=["la=scans/la"], out="reproduced", iterations=4000):
        print(shown)

Everything lies in the folder `out`: `runs/` has one folder for each run, keyed by its settings and scans, `measured/`
what was measured without training, and each item has its Markdown, its CSV and its figures there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fheat.experiments.engine import Failure, RunsWatcher, run_all, run_here
from fheat.experiments.items import present
from fheat.experiments.items.presented import Presented
from fheat.experiments.local import Local
from fheat.experiments.plan import Plan, make_plan
from fheat.experiments.planned import PlannedRun
from fheat.experiments.records import ITEMS, Item, Row
from fheat.experiments.records import item as item_named
from fheat.experiments.row_plan import RowPlan, plan_row
from fheat.experiments.row_result import RowResult, row_result
from fheat.experiments.sheet import numbers_csv
from fheat.figures.picture import write_pictures
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.system.settings import nearest


@dataclass(frozen=True)
class Reproduced:
    """An item with its rows, tables and figures, and the files that hold them."""

    item: Item
    results: tuple[RowResult, ...]
    presented: Presented
    files: tuple[Path, ...]
    not_shown: str = ""
    """Why the item has no tables and figures; empty if it has them."""

    @property
    def failures(self) -> dict[str, str]:
        """Reason of each run that failed, by row and seed, and of an item that cannot be shown, by its name."""
        runs = {
            f"{result.name}, seed {seed}": reason for result in self.results for seed, reason in result.failures.items()
        }
        return {**runs, self.item.name: self.not_shown} if self.not_shown else runs

    def to_json(self) -> dict[str, Any]:
        """Return the numbers and notes as plain data."""
        return {
            "item": self.item.name,
            "title": self.item.title,
            "numbers": [number.to_json() for number in self.presented.numbers],
            "tables": [
                {"title": sheet.title, "head": sheet.head, "rows": sheet.rows} for sheet in self.presented.sheets
            ],
            "notes": list(self.presented.notes),
            "files": [str(file) for file in self.files],
        }

    def __str__(self) -> str:
        blocks = [self.item.title]
        for sheet in self.presented.sheets:
            blocks += [sheet.text() if sheet.title == self.item.title else f"{sheet.title}\n{sheet.text()}"]
        notes = [f"- {note}" for note in self.presented.notes]
        return "\n\n".join(block for block in (*blocks, "\n".join(notes)) if block)


def chosen_items(names: Iterable[str | Item] = (), rows: Sequence[str] = ()) -> list[Item]:
    """Return the items of these names, all without any, with the rows that are asked for.

    A row is asked for by its name (la-4/fheat-seg), its setting (la-4) or its system (fheat-seg). Raises `ValueError`
    for a name that does not exist.
    """
    found = [item_named(name) if isinstance(name, str) else name for name in names or ITEMS]
    if not rows:
        return found
    known = {word for one in found for row in one.rows for word in _words(row)}
    for name in rows:
        if name not in known:
            raise ValueError(f"no row {name!r}{nearest(name, sorted(known))}")
    kept = [one.model_copy(update={"rows": tuple(row for row in one.rows if _words(row) & set(rows))}) for one in found]
    return [one for one in kept if one.rows]


def reproduce(
    names: Iterable[str | Item] = (),
    *,
    rows: Sequence[str] = (),
    parallel: int | None = None,
    watcher: RunsWatcher | None = None,
    plan: Plan | None = None,
    **options: Any,
) -> list[Reproduced]:
    """Run what is missing of the items, write their tables and figures, and return them.

    Args:
        names: names of items such as table2, or items of your own; all of the paper if none.
        rows: rows to restrict them to, see `chosen_items`.
        parallel: number of workers on each GPU, or on the CPU; by default runs are done in this process, which knows
            networks and methods that were registered in it.
        watcher: hears what becomes of each run.
        plan: a plan of `make_plan`; or give its arguments as `options`.

    A run that fails is named in the state of its row, and the others go on.
    """
    plan = make_plan(**options) if plan is None else plan
    items = chosen_items(names, rows)
    plans = _planned(items, plan)
    missing = _missing(plans, plan.runs)
    if parallel is None:
        ends = run_here(missing, plan.runs, device=plan.device, watcher=watcher)
    else:
        ends = run_all(missing, plan.runs, Local(parallel=parallel, device=plan.device), watcher)
    failures = {end.name: end.reason for end in ends if isinstance(end, Failure)}
    return [_reproduced(one, plans[one.name], plan, failures) for one in items]


def to_do(items: Iterable[Item], plan: Plan) -> list[PlannedRun]:
    """Return the runs of the items that can be done and are not done yet."""
    return _missing(_planned(items, plan), plan.runs)


def _planned(items: Iterable[Item], plan: Plan) -> dict[str, list[RowPlan]]:
    return {one.name: [plan_row(row, plan) for row in one.rows] for one in items}


def _missing(plans: Mapping[str, Sequence[RowPlan]], folder: Path) -> list[PlannedRun]:
    """Return the runs that are not done yet; those of one name are the same run, which several rows need."""
    runs = {run.name: run for of_item in plans.values() for one in of_item for run in one.runs}
    return [run for run in runs.values() if run.outcome(folder) is None]


def _words(row: Row) -> set[str]:
    return {row.name, row.setting, row.system}


def _reproduced(item: Item, plans: Sequence[RowPlan], plan: Plan, failures: Mapping[str, str]) -> Reproduced:
    results = tuple(row_result(one, plan.runs, failures) for one in plans)
    not_shown = ""
    try:
        presented = present(item, results, plan)
    except (BadInput, ValueError) as error:  # such as a network that diverged and has nothing to measure
        not_shown = str(error)
        presented = Presented(notes=(f"not shown: {error}",))
    shown = Reproduced(item, results, presented, (), not_shown)
    return replace(shown, files=tuple(_write(shown, plan.out)))


def _write(shown: Reproduced, out: Path) -> list[Path]:
    """Write the Markdown, the CSV and the figures of an item and return the files."""
    item, presented = shown.item, shown.presented
    pictures = write_pictures(out, presented.pictures)
    parts = [f"# {item.title}"]
    for sheet in presented.sheets:
        parts += [] if sheet.title == item.title else [f"## {sheet.title}"]
        parts.append(sheet.markdown())
    parts += ["\n".join(f"- {note}" for note in presented.notes)] if presented.notes else []
    parts += [f"![{picture.caption}]({picture.file})" for picture in presented.pictures]
    markdown, numbers = out / f"{item.name}.md", out / f"{item.name}.csv"
    write_file(markdown, ("\n\n".join(parts) + "\n").encode())
    write_file(numbers, numbers_csv(item.name, presented.numbers).encode())
    return [markdown, numbers, *pictures]


def as_json(shown: Sequence[Reproduced]) -> str:
    """Return several items as JSON text."""
    return json.dumps([one.to_json() for one in shown], indent=1, ensure_ascii=False)
