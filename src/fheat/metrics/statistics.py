"""Statistics over cases: mean and standard deviation, the paired Wilcoxon test, and Holm's correction."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from sys import float_info
from typing import Final

TEST: Final = (
    "two-sided Wilcoxon signed-rank on second - first; pairs without a difference are left out of the ranks "
    "(zero_method='wilcox'); exact up to 50 pairs without ties and 13 with, else normal approximation; Holm over all p"
)
"""The test of `signed_rank`, in words."""
_SCALE: Final = 2.0**520
"""Divided by this, the squares of the largest numbers can be added."""


@dataclass(frozen=True)
class MeanAndDeviation:
    """Mean and standard deviation (ddof = 1) of `n` values. The mean is None for n = 0, the deviation for n < 2."""

    mean: float | None
    sd: float | None
    n: int


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return fsum(values) / len(values)


def moments(values: Sequence[float]) -> MeanAndDeviation:
    """Return the mean, the standard deviation and the number of any number of values, however large these are."""
    try:
        return _moments(values)
    except OverflowError:  # sums or squares beyond the largest number: the same with smaller values
        small = _moments([value / _SCALE for value in values])
    scaled = [None if one is None else min(one * _SCALE, float_info.max) for one in (small.mean, small.sd)]
    return MeanAndDeviation(scaled[0], scaled[1], small.n)


def _moments(values: Sequence[float]) -> MeanAndDeviation:
    n = len(values)
    if n == 0:
        return MeanAndDeviation(None, None, 0)
    middle = mean(values)
    return MeanAndDeviation(
        middle, None if n == 1 else sqrt(fsum((value - middle) ** 2 for value in values) / (n - 1)), n
    )


def signed_rank(differences: Sequence[float]) -> float | None:
    """Return p of the test in `TEST` for paired differences: None where there is no pair, 1 where no pair differs."""
    from scipy.stats import wilcoxon  # takes long to import, and means need none of it

    nonzero = [difference for difference in differences if difference != 0]
    return None if not differences else float(wilcoxon(nonzero).pvalue) if nonzero else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number, in the order given; a single one stays as it is."""
    corrected, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected
