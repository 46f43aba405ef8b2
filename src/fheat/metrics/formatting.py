"""Tables of results as text, and the mean and standard deviation over cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lay cells out in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def number(value: float | None) -> str:
    """Print a metric to four places, and `-` where it is not defined."""
    return "-" if value is None else f"{value:.4f}"


def printable(name: str) -> str:
    """Return a name that stays on its line: control characters from a file are shown, not obeyed."""
    return name if name.isprintable() else ascii(name)


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation (ddof = 1) over the `n` cases in which a metric is defined; None where n is 0, 1."""

    mean: float | None
    sd: float | None
    n: int


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return fsum(values) / len(values)


def moments(values: Sequence[float]) -> Mean:
    """Return mean, deviation and number of any number of values."""
    n = len(values)
    if n == 0:
        return Mean(None, None, 0)
    middle = mean(values)
    return Mean(middle, None if n == 1 else sqrt(fsum((value - middle) ** 2 for value in values) / (n - 1)), n)
