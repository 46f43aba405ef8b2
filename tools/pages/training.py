"""Training runs on LA (docs/evidence/runs.md)."""

import statistics

from scipy.stats import wilcoxon

from pages.common import open_gates, stored, table

RUNS = {
    "seed0-16000": "unlabelled, seed 0, 16,000 iterations",
    "seed1": "unlabelled, seed 1",
    "seed2": "unlabelled, seed 2",
    "seed3": "unlabelled, seed 3",
    "labelled-seed0": "labelled, seed 0",
    "labelled-seed1": "labelled, seed 1",
    "seed0-no-warm-up": "unlabelled, seed 0, no warm-up",
    "labelled-seed0-no-clipping": "labelled, seed 0, no clipping",
    "labelled-seed0-no-warm-up": "labelled, seed 0, no warm-up",
    "labelled-seed0-no-warm-up-no-clipping": "labelled, seed 0, neither",
}
LONG_RUNS = {
    "fused-seed0": "kernels, seed 0",
    "fused-seed1": "kernels, seed 1",
    "earlier-fused-seed0": "earlier kernels, seed 0",
    "plain-seed0": "plain PyTorch, seed 0",
}
SPEEDS = {
    "plain": "plain PyTorch, captured",
    "fused, all gates open": "fused, all gates open",
    "fused, dec1 open": "fused, dec1 open, the others closed",
}


def la_runs() -> str:
    """Return the table of the first ten runs."""
    runs = stored("la-4-cuda")["runs"]
    rows = [
        [
            words,
            f"{runs[name]['validation']['1000']:.4f}",
            f"{runs[name]['best']['dice']:.4f}",
            open_gates(runs[name]["gates"]),
        ]
        for name, words in RUNS.items()
    ]
    return table(["content of the box, run", "validation 1,000", "best", "gates open at the end, D"], rows)


def la_long_runs() -> str:
    """Return the table of the runs of 16,000 iterations, with kernels and without."""
    rows = []
    for name, words in LONG_RUNS.items():
        run = stored("la-4-fused-cuda")["runs"][name]
        settled = _settled(name)
        rows.append(
            [
                words,
                f"{run['best']['dice']:.4f}",
                f"{run['best']['iteration']:,}",
                f"{run['validation']['16000']:.4f}",
                f"{statistics.mean(settled):.4f} ({statistics.stdev(settled):.4f})",
                open_gates(run["gates"]),
            ]
        )
    head = ["run", "best", "at iteration", "last", "mean from 4,000 on (SD)", "gates open at the end, D"]
    return table(head, rows)


def kernels_against_plain() -> str:
    """Return p of Wilcoxon's test, scan by scan, between the best networks with kernels and without."""
    runs = stored("la-4-fused-cuda")["runs"]
    fused, plain = (runs[name]["cases"] for name in ("fused-seed0", "plain-seed0"))
    return f"{wilcoxon(list(fused.values()), [plain[case] for case in fused]).pvalue:.2f}"


def plain_ahead(where: str) -> str:
    """Return by how much plain PyTorch is ahead of the kernels, at the `last` iteration or on `average`."""
    if where == "last":
        runs = stored("la-4-fused-cuda")["runs"]
        plain, fused = (runs[name]["validation"]["16000"] for name in ("plain-seed0", "fused-seed0"))
        return f"{plain - fused:.4f}"
    plain, fused = (statistics.mean(_settled(name)) for name in ("plain-seed0", "fused-seed0"))
    return f"{plain - fused:.4f}"


def plain_minutes() -> str:
    """Return the minutes that 16,000 iterations take at the speed of plain PyTorch."""
    return f"{16_000 / stored('step-cuda')['per_second']['plain'] / 60:.0f}"


def step_speeds() -> str:
    """Return the table of iterations per second."""
    speeds = stored("step-cuda")["per_second"]
    return table(["", "iterations per second"], [[words, f"{speeds[name]:.1f}"] for name, words in SPEEDS.items()])


def _settled(name: str) -> list[float]:
    """Return the validation Dice from iteration 4,000 on."""
    curve = stored("la-4-fused-cuda")["runs"][name]["validation"]
    return [dice for iteration, dice in curve.items() if int(iteration) >= 4000]
