"""Scores of many cases: one row per case and class, and a summary that says how many cases are behind each mean.

Distances do not exist where a mask is empty. Such cases are neither averaged as 0 nor left out silently: every mean is
given with its n, and every class with the number of cases that have empty masks.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, get_args

from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES, PairKind, Scores, Unit
from fheat.metrics.statistics import MeanAndDeviation, moments
from fheat.metrics.table_format import COLUMNS, DEFINITIONS, FORMAT, Line, csv_lines, json_file
from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, read_capped
from fheat.system.text import aligned, printable

KINDS: Final[tuple[PairKind, ...]] = get_args(PairKind)
_REMEDY: Final = "write it again with fheat evaluate"


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one class in one case."""

    case: str
    label: str
    """Name of the class."""
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
    """One class over all cases."""

    cases: int
    """Number of cases."""
    kinds: Mapping[PairKind, int]
    """Number of cases of each kind."""
    metrics: Mapping[str, MeanAndDeviation]
    """Mean and standard deviation of each metric over the cases in which it is defined."""


@dataclass(frozen=True)
class Table:
    """Scores of many cases in one unit; it prints, and it is written to JSON and CSV and read back exactly.

    CSV holds the rows, the unit and the tolerance. JSON also holds the sources, the refused cases with reasons, the
    notes and the definitions of the metrics.
    """

    rows: tuple[ScoreRow, ...]
    unit: Unit
    """Unit of every distance and of the tolerance."""
    tolerance: float = 2.0
    """Distance that counts as near in the surface Dice."""
    prediction: str = ""
    """File or folder of the predictions, as the user named it."""
    reference: str = ""
    """File or folder of the references, as the user named it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Cases that are not among the rows, each with the reason."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader, such as predictions without a reference."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the programs that computed the scores."""

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

    def mean(self, metric: str, label: str | None = None) -> float | None:
        """Return the mean of a metric over the cases of one class or, without a class, the mean of these over classes.

        Cases in which it is not defined are left out; the mean is None where it is defined in none.
        """
        classes = self.labels if label is None else (label,)
        means = [
            moments([each[metric] for each in self.scores(name).values() if each[metric] is not None]).mean
            for name in classes
        ]
        return moments([value for value in means if value is not None]).mean

    def summary(self) -> dict[str, Summary]:
        """Return the summary of every class, by its name."""
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
            "summary": {label: _summary_data(summary) for label, summary in self.summary().items()},
            "refused": dict(self.refused),
            "notes": list(self.notes),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str | Path = "JSON") -> Self:
        """Return the table that `to_json` wrote; its summary is computed anew. Raises `BadInput` naming the field."""
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
            raise BadInput(path, str(error), _REMEDY) from None

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
        """Return the table that `to_csv` wrote. Raises `BadInput` naming the row and the column."""
        try:
            lines = csv_lines(text)
            if not lines:
                raise ValueError("holds no rows")
            tolerances = sorted({line.tolerance for line in lines})
            if len(tolerances) > 1:
                raise ValueError(f"column tolerance holds {tolerances[0]} and {tolerances[1]}: it must be one number")
            return cls(tuple(_row(line, line.unit) for line in lines), lines[0].unit, tolerances[0])
        except ValueError as error:
            raise BadInput(path, str(error), _REMEDY) from None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the table in a `.json` or `.csv` file."""
        try:
            text = read_capped(path, TABLE_LIMIT).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInput(path, f"is not text ({error.reason} at byte {error.start})", _REMEDY) from None
        except OSError as error:
            raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
        return cls.from_csv(text, path) if Path(path).suffix == ".csv" else cls.from_json(text, path)

    def __str__(self) -> str:
        heads = [f"{name} {self.unit}" if name in NEEDS_SURFACES[:-1] else name for name in METRICS]
        rows = [[printable(row.case), printable(row.label), *_cells(row.scores), row.scores.case] for row in self.rows]
        body = [["case", "class", *heads, "kind"], *rows]
        totals, counts = [["class", "", *heads]], []
        for name, summary in ((printable(label), summary) for label, summary in self.summary().items()):
            columns = summary.metrics.values()
            totals.append([name, "mean", *(number(column.mean) for column in columns)])
            totals.append(["", "SD", *(number(column.sd) for column in columns)])
            totals.append(["", "n", *(f"{column.n} of {summary.cases}" for column in columns)])
            counts.append(f"{name}: {_counts(summary)}")
        footnote = f"surface_dice is within {self.tolerance:g} {self.unit}; SD has ddof = 1."
        return "\n".join([aligned(body), "", aligned(totals), "", *counts, footnote])


def number(value: float | None) -> str:
    """Return a metric with four decimals, or `-` where it is not defined."""
    return "-" if value is None else f"{value:.4f}"


def _summary(scores: Sequence[Scores]) -> Summary:
    kinds = Counter(each.case for each in scores)
    columns = {name: [each[name] for each in scores if each[name] is not None] for name in METRICS}
    means = {name: moments(values) for name, values in columns.items()}
    return Summary(len(scores), {kind: kinds[kind] for kind in KINDS}, means)


def _counts(summary: Summary) -> str:
    """Return a sentence with the number of cases of each kind, and with how many have no distances."""
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
    metrics = {name: vars(column) for name, column in summary.metrics.items()}
    return {"cases": summary.cases, "kinds": summary.kinds, "metrics": metrics}


def _row(line: Line, unit: Unit) -> ScoreRow:
    metrics = {name: getattr(line, name) for name in METRICS}
    return ScoreRow(line.case, line.label, Scores(**metrics, case=line.kind, unit=unit))


def _line(row: ScoreRow) -> dict[str, Any]:
    metrics = {name: row.scores[name] for name in METRICS}
    return {"case": row.case, "class": row.label, **metrics, "kind": row.scores.case}
