"""Tables of a reproduction as text: for a terminal, as Markdown, and as CSV with one line for every number."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fheat.experiments.records import Published
from fheat.metrics.statistics import MeanAndDeviation
from fheat.system.text import aligned, printable

CSV_HEAD: Final = (
    *("item", "row", "quantity", "published", "published_sd", "ours", "ours_sd", "n", "iterations", "scans", "state"),
)

NOTHING: Final = MeanAndDeviation(None, None, 0)
"""Value of a quantity that is not measured."""


@dataclass(frozen=True)
class Number:
    """A quantity of ours beside the published one; either may be missing."""

    row: str
    """Name of the row, such as la-4/fheat-seg; empty for a quantity of the whole item."""
    quantity: str
    published: Published | None = None
    ours: MeanAndDeviation = NOTHING
    iterations: str = ""
    scans: str = ""
    state: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the number as plain data."""
        mean, sd = self.published or (None, None)
        values = (self.row, self.quantity, mean, sd, self.ours.mean, self.ours.sd, self.ours.n)
        return dict(zip(CSV_HEAD[1:], (*values, self.iterations, self.scans, self.state), strict=True))


@dataclass(frozen=True)
class Sheet:
    """A table of words; every row has one cell for each title in `head`."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Return the table for a terminal, its columns lined up; it is empty without rows."""
        return aligned([self.head, *([printable(cell) for cell in row] for row in self.rows)]) if self.rows else ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [_markdown_row(self.head), "|" + "---|" * len(self.head), *map(_markdown_row, self.rows)]
        return "\n".join(lines)


def with_deviation(mean: float | None, sd: float | None = None, form: str = ".2f") -> str:
    """Return `90.47 ± 0.21`, or `90.47` without a deviation, or `-` where there is no number."""
    if mean is None:
        return "-"
    return f"{mean:{form}}" + ("" if sd is None else f" ± {sd:{form}}")


def numbers_csv(item: str, numbers: Iterable[Number]) -> str:
    """Return all numbers of an item as CSV; what is missing is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, CSV_HEAD, lineterminator="\n")
    writer.writeheader()
    for number in numbers:
        writer.writerow({"item": item, **number.to_json()})
    return text.getvalue()


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"
