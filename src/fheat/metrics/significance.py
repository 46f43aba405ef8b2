"""Comparison of two tables of scores: a paired Wilcoxon signed-rank test for each metric and class.

The pairs are the cases that both tables have and in which the metric is defined for both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES
from fheat.metrics.statistics import TEST, holm, mean, signed_rank
from fheat.metrics.table import Table, number
from fheat.system.text import aligned, printable

LEVEL: Final = 0.05
"""Level of significance that remarks on few pairs refer to."""


@dataclass(frozen=True)
class Paired:
    """The test of one metric of one class."""

    label: str
    """Name of the class."""
    metric: str
    n: int
    """Number of pairs: cases in both tables in which the metric is defined for both."""
    zeros: int
    """Number of pairs without a difference."""
    first: float | None
    """Mean over the n pairs in the first table."""
    second: float | None
    """Mean over the n pairs in the second table."""
    difference: float | None
    """Mean of second - first."""
    p: float | None
    """p of the test: None where there is no pair, 1 where no pair differs."""
    smallest_p: float
    """Smallest p that this number of pairs can give, all changed in one direction: 2 / 2^(n - zeros)."""
    dropped: Mapping[str, str]
    """Cases of both tables that are no pair, each with the reason."""
    p_holm: float | None = None
    """p corrected for the number of tests in the comparison."""


@dataclass(frozen=True)
class Comparison:
    """Two tables compared over their common cases, with one test for each metric and class."""

    tests: tuple[Paired, ...]
    only_first: tuple[str, ...]
    """Cases that the second table does not have."""
    only_second: tuple[str, ...]
    """Cases that the first table does not have."""
    names: tuple[str, str] = field(default=("first", "second"))

    def to_json(self) -> str:
        """Return the comparison as JSON text."""
        content: dict[str, Any] = {"format": 1, "test": TEST, **asdict(self)}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def __str__(self) -> str:
        head = ["class", "metric", "n", "first", "second", "difference", "p", "p Holm"]
        lines = [aligned([head, *(_cells(test) for test in self.tests)]), ""]
        lines += [f"{order}: {printable(name)}" for order, name in zip(("first", "second"), self.names, strict=True)]
        for test in self.tests:
            lines += _remarks(test)
        for order, cases in (("first", self.only_first), ("second", self.only_second)):
            if cases:
                lines.append(f"only in the {order}, not compared: {', '.join(map(printable, cases))}")
        return "\n".join([*lines, f"p: {TEST}."])


def compare(
    a: Table, b: Table, metric: str | Sequence[str] = "dice", *, names: tuple[str, str] | None = None
) -> Comparison:
    """Test whether the second table differs from the first, per metric and class.

    Args:
        a: the first table.
        b: the second table; a positive difference of Dice means that it is better.
        metric: one metric or several; Holm's correction spans all of them and all classes.
        names: names of the two tables in print.

    However few the pairs are, p is given, with the smallest p they can reach: below 6 differing pairs that is above
    0.05. A class that only one table has gives a test without pairs. A table compared with itself has p = 1 everywhere.
    """
    metrics = (metric,) if isinstance(metric, str) else tuple(dict.fromkeys(metric))
    _check(a, b, metrics)
    common = [case for case in a.cases if case in set(b.cases)]
    if not common:
        first, second = (", ".join(table.cases[:3]) or "none" for table in (a, b))
        raise ValueError(f"no case is in both: the first has {first}, the second {second}")
    labels = dict.fromkeys([*a.labels, *b.labels])
    if not set(a.labels) & set(b.labels):
        raise ValueError(f"no class is in both: the first has {', '.join(a.labels)}, the second {', '.join(b.labels)}")
    tests = [_paired(a, b, common, label, name) for name in metrics for label in labels]
    return Comparison(
        tests=_with_holm(tests),
        only_first=tuple(case for case in a.cases if case not in set(b.cases)),
        only_second=tuple(case for case in b.cases if case not in set(a.cases)),
        names=names or ("first", "second"),
    )


def _check(a: Table, b: Table, metrics: Sequence[str]) -> None:
    if not metrics:
        raise ValueError(f"metric names nothing: use one of {', '.join(METRICS)}")
    for name in metrics:
        if name not in METRICS:
            raise ValueError(f"no metric {name!r}: use one of {', '.join(METRICS)}")
        if name in NEEDS_SURFACES and a.unit != b.unit:
            raise ValueError(f"{name} is in {a.unit} and in {b.unit}: evaluate both in one unit")
        if name == "surface_dice" and a.tolerance != b.tolerance:
            raise ValueError(f"surface_dice has tolerance {a.tolerance:g} and {b.tolerance:g}: evaluate with one")


def _paired(a: Table, b: Table, common: Sequence[str], label: str, metric: str) -> Paired:
    first, second = a.scores(label), b.scores(label)
    pairs: list[tuple[float, float]] = []
    dropped: dict[str, str] = {}
    for case in common:
        missing = [order for order, scores in (("first", first), ("second", second)) if case not in scores]
        if missing:
            dropped[case] = f"no such class in the {' and '.join(missing)}"
            continue
        values = first[case][metric], second[case][metric]
        undefined = [order for order, value in zip(("first", "second"), values, strict=True) if value is None]
        if undefined:
            dropped[case] = f"undefined in the {' and '.join(undefined)}"
        else:
            pairs.append(values)
    n = len(pairs)
    differences = [after - before for before, after in pairs]
    zeros = differences.count(0)
    means = [mean(column) for column in (*zip(*pairs, strict=True), differences)] if n else [None, None, None]
    p = signed_rank(differences)
    smallest = min(1.0, 2.0 ** (1 - (n - zeros)))
    return Paired(label, metric, n, zeros, means[0], means[1], means[2], p, smallest, dropped)


def _with_holm(tests: Sequence[Paired]) -> tuple[Paired, ...]:
    corrected = iter(holm([test.p for test in tests if test.p is not None]))
    return tuple(test if test.p is None else replace(test, p_holm=next(corrected)) for test in tests)


def _cells(test: Paired) -> list[str]:
    difference = "-" if test.difference is None else f"{test.difference:+.4f}"
    p, corrected = ("-" if value is None else f"{value:.3g}" for value in (test.p, test.p_holm))
    return [
        printable(test.label),
        test.metric,
        str(test.n),
        number(test.first),
        number(test.second),
        difference,
        p,
        corrected,
    ]


def _remarks(test: Paired) -> list[str]:
    name, remarks = f"{printable(test.label)}, {test.metric}", []
    if test.dropped:
        reasons = ", ".join(f"{printable(case)} ({reason})" for case, reason in test.dropped.items())
        remarks.append(f"{name}: {len(test.dropped)} of {test.n + len(test.dropped)} common cases dropped: {reasons}")
    if test.n and test.smallest_p > LEVEL:
        differing = test.n - test.zeros
        remarks.append(
            f"{name}: {differing} differing pairs cannot give a p below {test.smallest_p:g}; {LEVEL} takes 6"
        )
    return remarks
