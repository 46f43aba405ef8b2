"""What `fheat reproduce` reached on the datasets at hand, row by row and seed by seed, as one stored result.

    fheat reproduce table1 table2 table4 fig4 section5 methods --data DATA --out OUT
    fheat reproduce table6 --data DATA --out OUT --iterations 4000
    fheat reproduce table4 --rows la-all/fheat-seg-l --data DATA --out OUT --iterations 2000
    python studies/reproduced.py OUT DATA --store reproduced-cuda

It reads the runs that are done in OUT and trains nothing. Runs that are stored already and are not in OUT stay, so that
a campaign can be spread over several days; those of another kind of machine are refused.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import tyro
from record import read_result, result_names, write_result

from fheat.experiments.items.open_points import STORED
from fheat.experiments.plan import FULL, make_plan
from fheat.experiments.planned import Outcome
from fheat.experiments.records import item
from fheat.experiments.row_plan import RowPlan, plan_row
from fheat.experiments.row_result import row_result, score_of
from fheat.metrics.table import Table
from fheat.training.runs import read_history
from fheat.training.settings_sources import make_settings

ITEMS = ("table1", "table2", "table3", "table4", "table6", "fig4", "section5", "methods")
LENGTHS = (FULL, 4000, 2000)
SEEDS = (0, 1, 2)
SEMI_SUPERVISED = ("la-4/fheat-seg", "la-8/fheat-seg", "brats-25/fheat-seg")
FINAL = "dec1"
"""The stage that the paper calls Block_Final."""
METRICS = ("dice", "jaccard", "hd95", "asd")
PARTS = 10
"""Number of equal parts of a run over which its losses are summed up."""


def run_facts(outcome: Outcome, scores: Table) -> dict[str, Any]:
    """Return what is kept of a run: means over its scans, the scores of every scan, and its gates at the end."""
    return {
        **{metric: _rounded(score_of(scores, metric)) for metric in METRICS},
        "learning_rate": make_settings(outcome.settings).optimiser.learning_rate,
        "best_at": outcome.best_at,
        "skipped": outcome.skipped,
        "per_second": _rounded(outcome.per_second),
        "minutes": _rounded(outcome.seconds / 60),
        "fheat": outcome.machine["fheat"],
        "ended_on": outcome.machine["device"],
        "key": outcome.key[:12],
        "gates": {
            site: {"D": _rounded(gate.D), "alpha": _rounded(gate.alpha), "closed_at": gate.closed_at}
            for site, gate in outcome.gates.items()
        },
        "open": sorted(outcome.survivors),
        "cases": {
            row.label: {
                other.case: [_rounded(other.scores[metric]) for metric in METRICS]
                for other in scores.rows
                if other.label == row.label
            }
            for row in scores.rows
        },
    }


def course(folder: Path) -> dict[str, Any]:
    """Return how a run went: Dice of every validation by its iteration, and each loss in tenths of the run."""
    history = read_history(folder)
    length = history.settings.schedule.iterations
    parts: list[list[dict[str, float]]] = [[] for _ in range(PARTS)]
    for step in history.steps:
        parts[min(int((step["iteration"] - 1) * PARTS // length), PARTS - 1)].append(step)
    sums = {"median": statistics.median, "largest": max}
    return {
        "validations": {str(one.iteration): _rounded(100 * one.mean) for one in history.validations},
        "losses": {
            name: {kind: [_rounded(taken([step[name] for step in part])) for part in parts if part]
                   for kind, taken in sums.items()}
            for name in history.losses
        },
    }  # fmt: skip


def gradients(plan: RowPlan, runs: Path, seed: int) -> list[dict[str, Any]] | None:
    """Return dL/dalpha at the open gates of a run, None where it was not measured."""
    path = plan.runs[plan.seeds.index(seed)].folder(runs) / STORED
    return json.loads(path.read_text()) if path.is_file() else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def gathered(out: Path, data: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rows by the length of their runs, and the machine that trained them.

    A run that was scored on another machine than it was trained on names the one that scored it, so the first counts.
    """
    found: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    for length in LENGTHS:
        plan = make_plan(data=[str(data)], out=out, iterations=length, seeds=SEEDS)
        for row in (row for name in ITEMS for row in item(name).rows):
            planned = plan_row(row, plan)
            if row.name in found.get(str(length), {}) or not planned.runs:
                continue
            result = row_result(planned, plan.runs, {})
            seeds = {str(seed): run_facts(run, result.tables[seed]) for seed, run in result.outcomes.items()}
            for seed in result.outcomes:
                seeds[str(seed)]["course"] = course(planned.runs[planned.seeds.index(seed)].folder(plan.runs))
                machine = machine or result.outcomes[seed].machine
                if (measured := gradients(planned, plan.runs, seed)) is not None:
                    seeds[str(seed)]["order_gradients"] = measured
            if seeds:
                facts = {"title": row.title, "scans": result.scans, "seeds": seeds}
                found.setdefault(str(length), {})[row.name] = facts
    return found, machine


def with_stored(found: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the stored rows by length with those that were found: a seed that is in both is the one found."""
    rows = {length: dict(stored.get(length, {})) for length in dict.fromkeys((*map(str, LENGTHS), *found))}
    for length, new in found.items():
        for name, row in new.items():
            seeds = rows[length].get(name, {}).get("seeds", {}) | row["seeds"]
            rows[length][name] = row | {"seeds": dict(sorted(seeds.items()))}
    return {length: named for length, named in rows.items() if named}


def survivors(rows: dict[str, Any]) -> dict[str, Any]:
    """Count, over the long runs of FHEAT-Seg with few labels, the open gates at the end; give the ranges of dec1."""
    runs = [run for name in SEMI_SUPERVISED if name in rows for run in rows[name]["seeds"].values()]
    counted = {
        name: {
            quantity: {"least": min(values), "largest": max(values)}
            for quantity in ("D", "alpha")
            if (values := [run["gates"][FINAL][quantity] for run in rows[name]["seeds"].values()])
        }
        for name in SEMI_SUPERVISED
        if name in rows
    }
    return {
        "runs": len(runs),
        "exactly_one_open": sum(len(run["open"]) == 1 for run in runs),
        "final_block_open": sum(FINAL in run["open"] for run in runs),
        "most_open": max(len(run["open"]) for run in runs),
        "final_block": counted,
    }


def main(
    out: Annotated[Path, tyro.conf.Positional],
    data: Annotated[Path, tyro.conf.Positional],
    /,
    store: str | None = None,
) -> None:
    """Print Dice and 95HD of every row that is done, and store them under a name.

    Args:
        out: folder of `fheat reproduce`.
        data: folder of the datasets.
        store: name of the stored result.
    """
    found, machine = gathered(out, data)
    if not found:
        raise SystemExit(f"{out} holds no run that is done on the datasets in {data}")
    for length, rows in found.items():
        for name, row in rows.items():
            for seed, run in row["seeds"].items():
                opened = ", ".join(run["open"]) or "none"
                print(
                    f"{length:>6} {name:28} seed {seed}  Dice {run['dice']:.2f}  95HD {run['hd95']:.2f}  open {opened}"
                )
    if store is None:
        return
    rows = found
    if store in result_names():
        earlier = read_result(store)
        if earlier.machine.name != machine["name"]:
            raise SystemExit(f"{store} has runs of {earlier.machine.name}, not of {machine['name']}: use another name")
        rows = with_stored(found, earlier.results)
    write_result(
        store,
        title="What fheat reproduce reached on LA and BraTS 2019: scores on validation scans and gates, seed by seed",
        command="fheat reproduce table1 table2 table4 fig4 section5 methods --data DATA --out OUT; fheat reproduce "
        "table6 --data DATA --out OUT --iterations 4000; fheat reproduce table4 --rows la-all/fheat-seg-l --data DATA "
        f"--out OUT --iterations 2000; python studies/reproduced.py OUT DATA --store {store}",
        seed=list(SEEDS),
        machine=machine,
        note="Rows by the length of their runs in iterations; a method with a published length of its own takes as "
        "large a share of it as the row does of 16,000. Dice and Jaccard in per cent, distances in voxels; cases hold "
        "shares, not per cent. Runs came in over several versions; each names its own, those without are of 0.1.0 or "
        "0.2.0. Runs without a learning rate have 0.01. Six to fourteen runs shared the GPU, so per_second and minutes "
        "say nothing about the speed of one.",
        settings={"items": list(ITEMS), "metrics": list(METRICS)},
        results=rows | ({"survivors": survivors(rows[str(FULL)])} if str(FULL) in rows else {}),
    )


if __name__ == "__main__":
    tyro.cli(main)
