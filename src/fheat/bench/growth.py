"""How time grows with size: the exponent of a power law, and what a doubling costs."""

import math
from collections.abc import Sequence


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return p of time ~ size^p, by least squares on the logarithms: 1 is linear."""
    if len(sizes) != len(times) or len(set(sizes)) < 2:
        raise ValueError(f"{len(sizes)} sizes and {len(times)} times: give two or more different sizes, one time each")
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle_x) ** 2 for a in x)


def doublings(sizes: Sequence[int], times: Sequence[float]) -> dict[str, float]:
    """Return time(2 n) / time(n) wherever both were measured, by the name `n to 2n`: 2 is no gain."""
    by_size = dict(zip(sizes, times, strict=True))
    return {f"{size} to {2 * size}": by_size[2 * size] / by_size[size] for size in sizes if 2 * size in by_size}
