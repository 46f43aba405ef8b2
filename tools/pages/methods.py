"""Texts of docs/evidence/runs.md about the training methods: what each reached with the same network and budget."""

import statistics
from typing import Any

from fheat.metrics.statistics import holm, signed_rank
from pages.common import stored, stored_head, table

BASE = "supervised"


def methods_table(result: str) -> str:
    """Return the methods of a stored comparison, the best first, each against training on labelled scans alone."""
    methods = stored(result)
    order = sorted(methods, key=lambda name: -_mean(methods[name], "dice"))
    rivals = [name for name in order if name != BASE]
    tests = dict(zip(rivals, holm([_p(methods[name], methods[BASE]) for name in rivals]), strict=True))
    rows = []
    for name in order:
        change = 100 * (_mean(methods[name], "dice") - _mean(methods[BASE], "dice"))
        spread = 100 * statistics.stdev(seed["dice"] for seed in methods[name].values())
        rows.append(
            [
                f"`{name}`",
                f"{100 * _mean(methods[name], 'dice'):.2f} ± {spread:.2f}",
                "" if name == BASE else f"{change:+.2f}",
                f"{_mean(methods[name], 'hd95'):.2f}",
                "" if name == BASE else _printed(tests[name]),
            ]
        )
    return table(["method", "Dice %, mean ± SD of the seeds", "change", "95HD, mm", "p"], rows)


def method_dice(name: str, result: str = "methods-hippocampus-cuda") -> str:
    """Return the Dice of one method in per cent, the mean of its seeds."""
    return f"{100 * _mean(stored(result)[name], 'dice'):.2f}"


def methods_seeds(result: str) -> str:
    """Return the number of seeds of each method."""
    return str(min(len(seeds) for seeds in stored(result).values()))


def methods_length(result: str) -> str:
    """Return the number of iterations of the runs."""
    return f"{stored_head(result).settings['schedule']['iterations']:,}"


def _mean(seeds: dict[str, Any], name: str) -> float:
    return statistics.fmean(seed[name] for seed in seeds.values())


def _p(seeds: dict[str, Any], base: dict[str, Any]) -> float:
    """Return p of Wilcoxon's signed-rank test over scans and classes, Dice averaged over the seeds."""
    ours, theirs = _by_scan(seeds), _by_scan(base)
    p = signed_rank([ours[place] - theirs[place] for place in ours])
    return 1.0 if p is None else p


def _by_scan(seeds: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return the Dice of every class and scan, averaged over the seeds; an empty prediction has 0."""
    first = next(iter(seeds.values()))["cases"]
    return {
        (label, case): statistics.fmean(seed["cases"][label][case][0] or 0.0 for seed in seeds.values())
        for label, cases in first.items()
        for case in cases
    }


def _printed(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"
