"""Mean and standard deviation over cases, with how many are behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt


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
