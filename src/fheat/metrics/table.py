"""Metrics over many cases: one row per case and class, and a summary that says how many cases are behind each number.

Distances do not exist where a mask is empty. Such cases are never averaged as 0 nor left out in silence: every mean
stands beside its n, and every class beside its counts of empty masks.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, get_args

from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES, MaskCase, Scores, Unit
from fheat.metrics.formatting import Mean, aligned, moments, number, printable
from fheat.metrics.table_format import COLUMNS, DEFINITIONS, FORMAT, Line, csv_lines, json_file
from fheat.system.errors import BadInput

KINDS: Final[tuple[MaskCase, ...]] = get_args(MaskCase)
_EVALUATE_AGAIN: Final = "write it again with fheat evaluate"


@dataclass(frozen=True)
class CaseRow:
    """One class of one case."""

    case: str
    label: str
    scores: Scores

    def __post_init__(self) -> None:
        for name in METRICS:
            defined = self.scores[name] is not None
            if defined != (name not in NEEDS_SURFACES or self.scores.case == "both"):
                state = "a number" if defined else "nothing"
                raise ValueError(
                    f"case {self.case!r}, class {self.label!r}: {name} is {state} though kind is {self.scores.case!r}"
                )


@dataclass(frozen=True)
class Summary:
    """One class over all cases: how many, how many of each kind, and every metric."""

    cases: int
    kinds: Mapping[MaskCase, int]
    metrics: Mapping[str, Mean]


@dataclass(frozen=True)
class Table:
    """Scores of many cases, all in one unit; printable, written to JSON and CSV and read back exactly.

    CSV holds the rows and the tolerance; JSON also what was compared, what was refused and why, and the definitions.
    """

    rows: tuple[CaseRow, ...]
    unit: Unit
    """Of every distance and of the tolerance."""
    tolerance: float = 2.0
    """Of the surface Dice."""
    prediction: str = ""
    """Where the masks came from, as the user named it."""
    reference: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    """MaskCase to the reason why it is not among the rows."""
    notes: tuple[str, ...] = ()
    """What else was noticed, such as predictions without a reference."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.scores.unit != self.unit:
                raise ValueError(
                    f"case {row.case!r} is in {row.scores.unit} in a table in {self.unit}: evaluate all in one unit"
                )
        for (case, label), count in Counter((row.case, row.label) for row in self.rows).items():
            if count > 1:
                raise ValueError(f"case {case!r} has {count} rows for class {label!r}: keep one")

    @property
    def cases(self) -> tuple[str, ...]:
        """Cases in the order of the rows."""
        return tuple(dict.fromkeys(row.case for row in self.rows))

    @property
    def labels(self) -> tuple[str, ...]:
        """Classes in the order of the rows."""
        return tuple(dict.fromkeys(row.label for row in self.rows))

    def scores(self, label: str) -> dict[str, Scores]:
        """Return the scores of one class by case."""
        return {row.case: row.scores for row in self.rows if row.label == label}

    def summary(self) -> dict[str, Summary]:
        """Return for every class its cases, their kinds, and mean, SD and n of each metric."""
        return {label: _summary(list(self.scores(label).values())) for label in self.labels}

    def to_json(self) -> str:
        """Return the table with its summary as JSON text."""
        content = {
            "format": FORMAT,
            "versions": dict(self.versions),
            "prediction": self.prediction,
            "reference": self.reference,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "definitions": DEFINITIONS,
            "rows": [_line(row) for row in self.rows],
            "summary": {label: _summary_data(found) for label, found in self.summary().items()},
            "refused": dict(self.refused),
            "notes": list(self.notes),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str | Path = "JSON") -> Self:
        """Read `to_json`; the summary is computed anew. Raises `BadInput` naming `path` and the field."""
        try:
            stored = json_file(text)
            rows = tuple(_row(line, stored.unit) for line in stored.rows)
            return cls(
                rows,
                stored.unit,
                stored.tolerance,
                stored.prediction,
                stored.reference,
                stored.refused,
                tuple(stored.notes),
                stored.versions,
            )
        except ValueError as error:
            raise BadInput(path, str(error), _EVALUATE_AGAIN) from None

    def to_csv(self) -> str:
        """Return the rows as CSV text; undefined distances are empty cells."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        for row in self.rows:
            writer.writerow({**_line(row), "unit": self.unit, "tolerance": self.tolerance})
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str, path: str | Path = "CSV") -> Self:
        """Read `to_csv`. Raises `BadInput` naming `path`, the row and the column."""
        try:
            lines = csv_lines(text)
            if not lines:
                raise ValueError("holds no rows")
            tolerances = sorted({line.tolerance for line in lines})
            if len(tolerances) > 1:
                raise ValueError(f"column tolerance holds {tolerances[0]} and {tolerances[1]}: it must be one number")
            return cls(tuple(_row(line, line.unit) for line in lines), lines[0].unit, tolerances[0])
        except ValueError as error:
            raise BadInput(path, str(error), _EVALUATE_AGAIN) from None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a `.json` or `.csv` file."""
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInput(path, f"is not text ({error.reason} at byte {error.start})", _EVALUATE_AGAIN) from None
        except OSError as error:
            raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
        return cls.from_csv(text, path) if Path(path).suffix == ".csv" else cls.from_json(text, path)

    def __str__(self) -> str:
        heads = [f"{name} {self.unit}" if name in NEEDS_SURFACES[:-1] else name for name in METRICS]
        rows = [[printable(row.case), printable(row.label), *_cells(row.scores), row.scores.case] for row in self.rows]
        body = [["case", "class", *heads, "kind"], *rows]
        found = self.summary()
        totals, below = [["class", "", *heads]], []
        for name, summary in ((printable(label), summary) for label, summary in found.items()):
            means = summary.metrics.values()
            totals.append([name, "mean", *(number(mean.mean) for mean in means)])
            totals.append(["", "SD", *(number(mean.sd) for mean in means)])
            totals.append(["", "n", *(f"{mean.n} of {summary.cases}" for mean in means)])
            below.append(f"{name}: {_counts(summary)}")
        dice = f"surface_dice is within {self.tolerance:g} {self.unit}; SD has ddof = 1."
        return "\n".join([aligned(body), "", aligned(totals), "", *below, dice])


def _summary(scores: Sequence[Scores]) -> Summary:
    kinds = Counter(found.case for found in scores)
    columns = {name: [found[name] for found in scores if found[name] is not None] for name in METRICS}
    means = {name: moments(values) for name, values in columns.items()}
    return Summary(len(scores), {kind: kinds[kind] for kind in KINDS}, means)


def _counts(summary: Summary) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in summary.kinds.items())
    text = f"{summary.cases} {'case' if summary.cases == 1 else 'cases'}: {kinds}."
    defined = summary.metrics["hd95"].n
    if defined < summary.cases:
        without = summary.cases - defined
        text += f" Distances and surface_dice are undefined in {without} (an empty mask has no surface); n says so."
    return text


def _cells(scores: Scores) -> list[str]:
    return [number(scores[name]) for name in METRICS]


def _summary_data(summary: Summary) -> dict[str, Any]:
    means = {name: vars(mean) for name, mean in summary.metrics.items()}
    return {"cases": summary.cases, "kinds": summary.kinds, "metrics": means}


def _row(line: Line, unit: Unit) -> CaseRow:
    metrics = {name: getattr(line, name) for name in METRICS}
    return CaseRow(line.case, line.label, Scores(**metrics, case=line.kind, unit=unit))


def _line(row: CaseRow) -> dict[str, Any]:
    metrics = {name: row.scores[name] for name in METRICS}
    return {"case": row.case, "class": row.label, **metrics, "kind": row.scores.case}
