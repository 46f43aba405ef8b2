"""The table of docs/evidence/mixers.md: operators at the sites of FHEAT-Seg after the same training."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from pages.common import is_stored, stored_head, table, with_deviation, with_source

WAYS = ("plain, trained", "plain, bypassed")
"""What is timed in plain PyTorch: the network as trained, and without the sites that are exactly off."""


def mixers(result: str, threshold: str = "0.99") -> str:
    """Return a line for each operator: Dice, sites that are exactly off, seed by seed, and what bypassing them saves.

    The last columns are of bypassing by similarity, from a cosine of `threshold` on. Times that were not measured are
    left out, and a line below the table names the operators that have no run.
    """
    found = stored_head(result)
    head = ["operator", "Dice, %", "exactly off", "unchanged on scans", "distance"]
    head += ["M MACs", "bypassed", "ms", "bypassed", f"cosine >= {threshold}", "Dice, %"]
    rows = []
    for operator, seeds in found.results.items():
        runs = list(seeds.values())
        distances = [value for run in runs for value in run["distance"].values()]
        rows.append(
            [
                f"`{operator}`",
                with_deviation([100 * run["dice"] for run in runs]),
                _counts(runs, "exactly_off"),
                _counts(runs, "unchanged_on_scans"),
                f"{median(distances):.3f}" if distances else "",
                *(f"{fmean(run['macs'][way] for run in runs) / 1e6:.1f}" for way in ("all sites", "bypassed")),
                *(_milliseconds(runs, way) for way in WAYS),
                "/".join(str(len(run["similar"][threshold]["bypassed"])) for run in runs),
                with_deviation([100 * run["similar"][threshold]["dice"] for run in runs]),
            ]
        )
    missing = ", ".join(f"`{operator}`" for operator in found.settings.get("not_run", ()))
    return table(head, rows) + (f"\n\nNot run: {missing}." if missing else "")


def mixers_once_run(result: str, threshold: str = "0.99") -> str:
    """Return the table with its command and a link where the result is stored, else that it is not."""
    return with_source(result, mixers(result, threshold)) if is_stored(result) else "No result of it is stored yet."


def left_out(result: str) -> str:
    """Return a line for each network and comparison: at every threshold how many are left out, and the Dice then."""
    found = stored_head(result)
    thresholds = [str(threshold) for threshold in found.settings["thresholds"]]
    rows = []
    for network, comparisons in found.results.items():
        for compared, row in comparisons.items():
            for by in ("cosine", "cka"):
                cells = [f"{len(row[by][at]['left_out'])}: {100 * row[by][at]['dice']:.2f}" for at in thresholds]
                rows.append([f"`{network.split(',')[0]}`", compared, by.replace("cka", "CKA"), *cells])
    return table(["operator", "compared", "by", *(f"from {at} on" for at in thresholds)], rows)


def _milliseconds(runs: Sequence[dict[str, Any]], way: str) -> str:
    """Return the mean time of the runs that were timed; with two digits, where one says little."""
    times = [run["milliseconds"][way] for run in runs if "milliseconds" in run]
    return f"{fmean(times):.{1 if fmean(times) >= 10 else 2}f}" if times else ""


def _counts(runs: Sequence[dict[str, Any]], name: str) -> str:
    """Return the numbers of sites of all seeds, or one number where they agree."""
    counts = [str(len(run[name])) for run in runs]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)
