"""Texts of docs/evidence/recipe.md: what one changed setting does to Dice and 95HD, dataset by dataset."""

import statistics
from typing import Any

from fheat.metrics.statistics import signed_rank
from pages.common import stored, stored_head, table

RESULT = "recipe-cuda"
BASE = "base"
JUDGED = "network, best"
WORDS = {
    "base": "the defaults",
    "clip-none": "gradients are not clipped",
    "clip-10": "gradients are clipped at a norm of 10 instead of 1",
    "theta-10": "the orders of the gates learn ten times as fast",
    "decay-1e-2": "weight decay 1e-2 instead of 1e-4",
    "intensity-none": "no z-score of the stored intensities",
    "mirror": "crops are mirrored at random",
    "rate-3e-3": "learning rate 0.003 instead of 0.01",
    "betas-0.99": "second beta of AdamW 0.99 instead of 0.999",
    "warm-up-1500": "warm-up of 1,500 iterations",
    "box-labelled": "labelled content inside the box, as the released code of CSE has it",
    "box-and-warm-up": "labelled content inside the box, and warm-up of 1,500 iterations",
    "ramp-1000": "the unsupervised terms gain their weight over 1,000 iterations",
    "final-only": "only the gate of the last block learns",
}


def recipe_table(task: str) -> str:
    """Return the candidates on one task, each against the defaults with the same seeds."""
    candidates = stored(RESULT)[task]["candidates"]
    rows = []
    for name, seeds in candidates.items():
        common = [seed for seed in seeds if seed in candidates[BASE]]
        dice, distance = (_mean(seeds, common, place) for place in (0, 1))
        if name == BASE:
            rows.insert(
                0, [WORDS[name], ", ".join(seeds), f"{100 * dice:.2f}", "", f"{distance:.2f}", "", "", _open(seeds)]
            )
            continue
        base = [_mean(candidates[BASE], common, place) for place in (0, 1)]
        rows.append(
            [
                WORDS[name],
                ", ".join(seeds),
                f"{100 * dice:.2f}",
                f"{100 * (dice - base[0]):+.2f}",
                f"{distance:.2f}",
                f"{distance - base[1]:+.2f}",
                _p(seeds, candidates[BASE], common),
                _open(seeds),
            ]
        )
    return table(["candidate", "seeds", "Dice %", "change", "95HD", "change", "p", "open gates, D"], rows)


def recipe_average(task: str) -> str:
    """Return what averaging the weights changes in the Dice of the last network, in points, over all runs of a task."""
    runs = [seed["scores"] for seeds in stored(RESULT)[task]["candidates"].values() for seed in seeds.values()]
    changes = [100 * (scores["average, last"][0] - scores["network, last"][0]) for scores in runs]
    return f"{statistics.fmean(changes):+.2f} (mean of {len(changes)} runs, {min(changes):+.2f} to {max(changes):+.2f})"


def recipe_length(task: str) -> str:
    """Return the number of iterations of the runs of a task."""
    return f"{stored(RESULT)[task]['iterations']:,}"


def recipe_machine() -> str:
    """Return the GPU of the runs."""
    return str(stored_head(RESULT).machine.name)


def _mean(seeds: dict[str, Any], common: list[str], place: int) -> float:
    return statistics.fmean(seeds[seed]["scores"][JUDGED][place] for seed in common)


def _p(seeds: dict[str, Any], base: dict[str, Any], common: list[str]) -> str:
    """Return p of Wilcoxon's signed-rank test over scans and classes, Dice averaged over the seeds."""
    differences = []
    for label, cases in seeds[common[0]]["cases"].items():
        for case in cases:
            ours, theirs = (
                statistics.fmean(run[seed]["cases"][label][case][0] or 0.0 for seed in common) for run in (seeds, base)
            )
            differences.append(ours - theirs)
    p = signed_rank(differences)
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _open(seeds: dict[str, Any]) -> str:
    return "; ".join(
        ", ".join(f"{site} {strength:.2f}" for site, (strength, _) in seed["open"].items()) or "none"
        for seed in seeds.values()
    )
