"""What can be left out of a trained FHEAT-Seg because it looks like what was before it, and what that costs.

    fheat sweep studies/mixers/la.toml --out OUT --only heat afno
    python studies/leave_out.py OUT --store leave-out-la-cpu

This is the pruning of SlimFormer-3D: after training, input and output are compared on the windows of validation scans,
and what hardly changes its input is left out. Three things are compared, see `fheat.gates.similarity`: the operators at
the sites by themselves, the blocks around them (consecutive layers), and x before and after every KAN3D, the mixing of
channels. Each is compared by the mean cosine and by linear CKA. For every threshold the result has what is left out,
the Dice of what remains on all validation scans, without any training afterwards, and its cost. Sites that training
closed are retired before, which is exact.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import tyro
from compare_mixers import Run, opened, rounded
from recipe import by_case, means
from record import ROOT, write_result

from fheat.experiments.planned import OUTCOME
from fheat.experiments.scoring import Scoring, cases_to_score, score
from fheat.gates.cost import COUNTER, cost
from fheat.gates.similarity import Compared, Measure, bypass_similar
from fheat.studies.mixing import similarity_on_scans
from fheat.system.text import aligned
from fheat.training.settings_sources import make_settings


def main(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    thresholds: tuple[float, ...] = (0.99, 0.95, 0.9),
    device: str | None = None,
    scans: int | None = None,
    store: str | None = None,
) -> None:
    """Print and store what is left out at each threshold.

    Args:
        out: folder of the sweep; relative paths to its data start where the sweep was started.
        thresholds: cosine, and CKA, from which on something is left out.
        device: cpu or cuda; a GPU where there is one.
        scans: number of validation scans on which inputs and outputs are compared; all if none. Dice is of all.
        store: name of the stored result.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    runs = sorted(map(opened, out.glob(f"*/{OUTCOME}")), key=lambda run: (run.place, run.seed))
    if not runs:
        raise SystemExit(f"{out}: has no finished run; do the sweep first")
    found: dict[str, Any] = {}
    for run in runs:
        found[run.name] = measured(run, thresholds, device, scans)
        if store is not None:
            keep(store, found, runs, device, thresholds, scans)
    print(table(found))


def measured(run: Run, thresholds: Sequence[float], device: str, scans: int | None) -> dict[str, Any]:
    """Return what is left out of one network by each comparison, measure and threshold, and what remains."""
    settings, scoring = make_settings(run.outcome.settings, run.folder), Scoring(**run.outcome.scoring)
    cases = cases_to_score(settings.data, scoring.split)
    scored: dict[frozenset[str], dict[str, Any]] = {}
    rows: dict[str, Any] = {}
    for compared in get_args(Compared):
        similar = similarity_on_scans(run.retired, cases[:scans], device=device, compared=compared)
        rows[compared] = {
            "similarity": {
                place: {by: round(getattr(one, by), 5) for by in get_args(Measure)} for place, one in similar.items()
            }
        }
        for by in get_args(Measure):
            for threshold in thresholds:
                network, left_out = bypass_similar(run.retired, similar, threshold, by)
                places = frozenset(left_out)
                if places not in scored:
                    dice, distance = means(by_case(score(network, settings, scoring, device=device)))
                    scored[places] = {"dice": round(dice, 5), "hd95": rounded(distance), "macs": cost(network).macs}
                    print(
                        f"{run.name}, {compared}, {by} >= {threshold}: {len(places)} left out, {dice:.4f}", flush=True
                    )
                rows[compared].setdefault(by, {})[str(threshold)] = {"left_out": left_out, **scored[places]}
    return rows


def table(found: dict[str, Any]) -> str:
    """Return a line for every network and comparison: for each threshold the number left out and the Dice without."""
    lines = []
    for name, rows in found.items():
        for compared, row in rows.items():
            for by in get_args(Measure):
                cells = [f"{len(one['left_out'])}: {100 * one['dice']:.2f}" for one in row[by].values()]
                head = ["network", "compared", "by", *row[by]]
                lines.append([name, compared, by, *cells])
    return str(aligned([head, *lines]))


def keep(
    name: str, found: dict[str, Any], runs: Sequence[Run], device: str, thresholds: Sequence[float], scans: int | None
) -> None:
    """Store what was found so far under a name."""
    write_result(
        name,
        title="What can be left out of a trained FHEAT-Seg by similarity, and the Dice that remains",
        command=f"fheat sweep studies/mixers/la.toml --out OUT --only {' '.join(run.operator for run in runs)}, then "
        f"python studies/leave_out.py OUT --store {name}" + (f" --scans {scans}" if scans is not None else ""),
        seed=sorted({run.seed for run in runs}),
        device=device,
        note="left_out: operators by site, or KAN3D by path, whose mean cosine or CKA is at least the threshold, after "
        "the closed sites were retired; dice, hd95 and macs are of what remains, without training, on all validation "
        f"scans. Networks were trained on {runs[0].outcome.machine['name']}. macs: {COUNTER}. "
        "hd95 in " + ("voxels." if runs[0].outcome.scoring["voxels"] else "millimetres."),
        settings={"thresholds": list(thresholds), "scans_compared": scans if scans is not None else "all"},
        results=found,
        out=ROOT / "benchmarks" / "results" / f"{name}.json",
    )


if __name__ == "__main__":
    tyro.cli(main)
