"""Texts of docs/evidence/runs.md about the training methods: what each reached with the same network and budget."""

import statistics
from collections.abc import Iterable
from typing import Any

from fheat.metrics.statistics import holm, signed_rank
from pages.common import stored, stored_head, table, with_deviation

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
        rows.append(
            [
                f"`{name}`",
                with_deviation([100 * seed["dice"] for seed in methods[name].values()]),
                "" if name == BASE else f"{change:+.2f}",
                f"{_mean(methods[name], 'hd95'):.2f}",
                "" if name == BASE else "{} of {}".format(*_lower(methods[name], methods[BASE])),
                "" if name == BASE else _printed(tests[name]),
            ]
        )
    return table(["method", "Dice %, mean ± SD of the seeds", "change", "95HD, mm", "lower in", "p"], rows)


def methods_least_p(result: str, corrected: str = "corrected") -> str:
    """Return the smallest p that the tests of a comparison can give: every scan on the same side, in every test."""
    methods = stored(result)
    p = signed_rank(range(1, len(_by_scan(methods[BASE])) + 1))
    return _printed(holm([p] * (len(methods) - 1))[0] if corrected == "corrected" else p)


def methods_lower_everywhere(result: str) -> str:
    """Return the methods that are below training on labelled scans alone in every scan."""
    counts = {name: _lower(seeds, stored(result)[BASE]) for name, seeds in stored(result).items()}
    return _listed(name for name, (lower, of) in counts.items() if lower == of)


def methods_within_seeds(result: str) -> str:
    """Return the methods that differ from training on labelled scans alone by less than its seeds scatter."""
    base = stored(result)[BASE]
    return _listed(
        name
        for name, seeds in stored(result).items()
        if name != BASE and abs(_mean(seeds, "dice") - _mean(base, "dice")) < _spread(base)
    )


def methods_spread(result: str, name: str) -> str:
    """Return the standard deviation of Dice over the seeds of a method, in points."""
    return f"{100 * _spread(stored(result)[name]):.2f}"


def methods_of_seeds(result: str, name: str) -> str:
    """Return the Dice of every seed of a method in per cent."""
    *first, last = (f"{100 * seed['dice']:.2f}" for seed in stored(result)[name].values())
    return f"{', '.join(first)} and {last}" if first else last


def methods_unfinished(result: str) -> str:
    """Return the methods that are best at the last iteration with every seed."""
    end = stored_head(result).settings["schedule"]["iterations"]
    return _listed(
        name for name, seeds in stored(result).items() if all(seed["best_at"] == end for seed in seeds.values())
    )


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


def _spread(seeds: dict[str, Any]) -> float:
    return statistics.stdev(seed["dice"] for seed in seeds.values())


def _lower(seeds: dict[str, Any], base: dict[str, Any]) -> tuple[int, int]:
    """Return in how many scans and classes the Dice is lower, averaged over the seeds, and how many there are."""
    ours, theirs = _by_scan(seeds), _by_scan(base)
    return sum(ours[place] < theirs[place] for place in ours), len(ours)


def _listed(names: Iterable[str]) -> str:
    words = [f"`{name}`" for name in sorted(names)] or ["none"]
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


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
