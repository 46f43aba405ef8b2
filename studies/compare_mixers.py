"""The operators at the sites of FHEAT-Seg side by side: accuracy, sites that are exactly off, and what that saves.

    fheat sweep studies/mixers/hippocampus.toml --out OUT --parallel 6
    python studies/compare_mixers.py OUT --store mixers-hippocampus-cuda

For every run of the sweep: Dice on its validation scans; the sites that are off for any input, by their parameters, and
those that left all scans unchanged, bit for bit; how far from the identity the others are; cost and time before and
after the former are removed, which is exact. Then the sites whose input and output are more alike than a threshold are
bypassed too, as SlimFormer-3D does after training, which is not exact: its price in Dice is measured.

With `--store` the result is written after each run, so that nothing is lost where a later one fails, and names the
operators that have no run yet. With `--add` the rows of a stored result that OUT does not have stay, so that a sweep
can be spread over several days. Times are always those of one run: networks of the stored rows are built anew for them,
with the same sites closed, because weights change no time. They need a machine that does nothing else, which the rest
does not: `--times none` leaves them out, and `--times only` adds them later to what is stored.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from recipe import by_case, means
from record import ROOT, from_root, read_result, result_names, write_result
from torch import nn

from fheat.bench.timing import Candidate, Timer, without_kernels
from fheat.experiments.planned import OUTCOME, SCORES, Outcome, read_outcome
from fheat.experiments.scoring import Scoring, cases_to_score, score
from fheat.gates.cost import COUNTER, cost
from fheat.gates.retire import retire
from fheat.gates.similarity import bypass_similar
from fheat.metrics.table import Table
from fheat.models.folder import load
from fheat.networks.operators import Operator
from fheat.networks.registry import NetworkSpec, create_model
from fheat.ops.gates import gates_of, operators_of
from fheat.studies.mixing import similarity_on_scans
from fheat.system.text import aligned
from fheat.training.settings_sources import make_settings

NONE = "none"
"""Name of the network without operators."""
ORDER = (*get_args(Operator), NONE)
"""Operators in the order of the table."""


@dataclass(frozen=True)
class Run:
    """A finished run of the sweep: its network as trained and with the sites removed that are exactly off."""

    place: int
    """Place of the operator in the table."""
    operator: str
    """Name of the operator, with the weight of the penalty where one was given."""
    seed: int
    outcome: Outcome
    folder: Path
    trained: nn.Module
    retired: nn.Module

    @property
    def name(self) -> str:
        """Name for tables."""
        return f"{self.operator}, seed {self.seed}"


def main(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    thresholds: tuple[float, ...] = (0.999, 0.99, 0.95),
    device: str | None = None,
    scans: int | None = None,
    rounds: int = 20,
    store: str | None = None,
    add: bool = False,
    times: Literal["after", "none", "only"] = "after",
    sweep: Path = Path("studies/mixers/hippocampus.toml"),
) -> None:
    """Print and store the table of operators.

    Args:
        out: folder of the sweep; relative paths to its data start where the sweep was started.
        thresholds: cosines from which on sites are bypassed after training.
        device: cpu or cuda; a GPU where there is one.
        scans: number of validation scans that similarities are measured on; all if none.
        rounds: number of turns of each network when times are measured.
        store: name of the stored result.
        add: keep the rows that are stored under that name already.
        times: measure times after all else, not at all, or only them, for the rows that are stored under that name.
        sweep: file of the sweep, which the stored result names.
    """
    if times == "only" and store is None:
        raise SystemExit("--times only is for the rows of a stored result: name it with --store")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    runs = sorted(map(opened, out.glob(f"*/{OUTCOME}")), key=lambda run: (run.place, run.operator, run.seed))
    if not runs:
        raise SystemExit(f"{out}: has no finished run; do the sweep first")
    check_alike(runs)
    rows = stored_rows(store, runs[0]) if store is not None and (add or times == "only") else {}
    write = partial(keep, store, runs, rows, device, thresholds, sweep)
    for run in runs if times != "only" else ():
        try:
            rows.setdefault(run.operator, {})[str(run.seed)] = measured(run, thresholds, device, scans)
        except Exception as error:  # one that fails must not cost the rows of the others
            print(f"failed {run.name}: {type(error).__name__}: {error}", flush=True)
            continue
        write()
        print(f"measured {run.name}", flush=True)
    if times != "none":
        spec = runs[0].trained.spec
        for (operator, seed), found in milliseconds(rows, spec, device, rounds).items():  # type: ignore[arg-type]
            rows[operator][seed]["milliseconds"] = found
        write()
    rows = in_order(rows)
    print(table(rows))
    if missing := not_run(rows):
        print(f"without a run: {', '.join(missing)}")


def opened(path: Path) -> Run:
    """Return the run of an outcome."""
    outcome = read_outcome(path)
    network = outcome.settings["network"]
    operator = NONE if network.get("gates") == "closed" else network.get("operator", "heat")
    part = outcome.scoring["network"] if outcome.best is not None else "final"
    trained = load(path.parent / part)
    weight = network.get("l0_weight")
    label = operator if weight is None else f"{operator} {weight:g}"
    seed = outcome.settings["schedule"]["seed"]
    return Run(ORDER.index(operator), label, seed, outcome, path.parent, trained, retire(trained))


def measured(run: Run, thresholds: Sequence[float], device: str, scans: int | None) -> dict[str, Any]:
    """Return what one run reached, what its sites do on scans, and what bypassing the similar ones costs."""
    settings, scoring = make_settings(run.outcome.settings, run.folder), Scoring(**run.outcome.scoring)
    cases = cases_to_score(settings.data, scoring.split)[:scans]
    similar = similarity_on_scans(run.retired, cases, device=device)
    off = [site for site, gate in gates_of(run.trained).items() if gate.closed]
    before, after = cost(run.trained), cost(run.retired)
    dice, distance = means(by_case(Table.read(run.folder / SCORES)))
    posthoc = {}
    for threshold in thresholds:
        network, sites = bypass_similar(run.retired, similar, threshold)
        rescored = means(by_case(score(network, settings, scoring, device=device))) if sites else (dice, distance)
        posthoc[str(threshold)] = {
            "bypassed": sites,
            "dice": round(rescored[0], 5),
            "hd95": rounded(rescored[1]),
            "macs": cost(network).macs,
        }
    return {
        "dice": round(dice, 5),
        "hd95": rounded(distance),
        "best_at": run.outcome.best_at,
        "per_second": run.outcome.per_second,
        "sites": len(operators_of(run.trained)),
        "exactly_off": off,
        "unchanged_on_scans": [site for site, one in similar.items() if one.unchanged],
        "distance": {site: one.distance for site, one in similar.items() if site not in off},
        "cosine": {site: one.cosine for site, one in similar.items() if site not in off},
        "cka": {site: one.cka for site, one in similar.items() if site not in off},
        "parameters": after.parameters,
        "macs": {"all sites": before.rest + full_macs(run.trained), "bypassed": after.macs},
        "similar": posthoc,
    }


def check_alike(runs: Sequence[Run]) -> None:
    """Stop where runs differ in their training by more than the seed, because their rows could not be compared."""
    first = training_of(runs[0])
    for run in runs:
        if training_of(run) != first:
            raise SystemExit(
                f"{run.folder}: was trained in another way than {runs[0].folder}; keep them in two folders"
            )


def training_of(run: Run) -> dict[str, Any]:
    """Return the training and the windows of a run, which all rows of a result have in common."""
    settings = run.outcome.settings
    schedule = {key: value for key, value in settings["schedule"].items() if key != "seed"}
    return {"schedule": schedule, "patch_size": settings["data"]["patch_size"]}


def not_run(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the operators that have no row."""
    return [operator for operator in ORDER if not rows.get(operator)]


def in_order(rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows by operator, in the order of the table, and by seed."""
    return {operator: dict(sorted(rows[operator].items())) for operator in sorted(rows, key=place_of) if rows[operator]}


def rounded(distance: float) -> float | None:
    """Return a distance for the record, or None where every mask was empty."""
    return None if math.isnan(distance) else round(distance, 4)


def stored_rows(name: str, run: Run) -> dict[str, dict[str, Any]]:
    """Return the rows of a stored result, which must be of the same training and windows as a run; none if new."""
    if name not in result_names():
        return {}
    found = read_result(name)
    if any(found.settings[key] != value for key, value in {**training_of(run), "counter": COUNTER}.items()):
        raise SystemExit(f"{name}: is of another training, {found.settings}; store under another name")
    return found.results


def place_of(label: str) -> tuple[int, str]:
    """Return the place of an operator in the table, by its name and, behind a blank, the weight of its penalty."""
    return ORDER.index(label.split()[0]), label


def milliseconds(
    rows: dict[str, dict[str, Any]], spec: NetworkSpec, device: str, rounds: int
) -> dict[tuple[str, str], dict[str, float]]:
    """Return the times of one window, float32: as trained and bypassed by plain PyTorch, and bypassed as it runs.

    They are by operator and seed. All candidates take turns. On a GPU each is a captured graph, and the last has the
    fused kernels where they apply.
    """
    timer = Timer(device=device, rounds=rounds)
    candidates: dict[tuple[str, str, str], Candidate] = {}
    x = torch.randn(spec.example_shape, device=device)
    for operator, seeds in rows.items():
        for seed, row in seeds.items():
            trained = in_state(operator, row["exactly_off"], spec).to(device).eval()
            retired = retire(trained)
            candidates[operator, seed, "plain, trained"] = without_kernels(timer.forward(trained, x))
            candidates[operator, seed, "plain, bypassed"] = without_kernels(timer.forward(retired, x))
            candidates[operator, seed, "as it runs, bypassed"] = timer.forward(retired, x)
    found = timer.times({"/".join(place): run for place, run in candidates.items()})
    for note in timer.notes:
        print(note)
    times: dict[tuple[str, str], dict[str, float]] = {}
    for operator, seed, way in candidates:
        times.setdefault((operator, seed), {})[way] = round(found[f"{operator}/{seed}/{way}"], 4)
    return times


def in_state(operator: str, off: Sequence[str], spec: NetworkSpec) -> nn.Module:
    """Return FHEAT-Seg with an operator and fresh weights, and the sites closed that training has closed."""
    name = operator.split()[0]
    chosen = {"gates": "closed"} if name == NONE else {"operator": name}
    sizes = {"in_channels": spec.in_channels, "out_channels": spec.out_channels, "patch_size": spec.patch_size}
    model = create_model(spec.name, **sizes, **chosen)
    for site in off:
        gate = gates_of(model)[site]
        if not gate.closed:
            gate.set_strength(0.0)
    return model


def full_macs(network: nn.Module) -> int:
    """Return the multiply-adds of all operators of a network in the state in which it was built, before training."""
    return cost(network.spec.build()).transform  # type: ignore[operator, union-attr]


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return a line for every operator: mean and SD over seeds, and for counts the values of the seeds."""
    head = ["operator", "Dice", "SD", "exactly off", "unchanged", "distance", "M MACs", "bypassed", "ms", "bypassed"]
    posthoc = list(next(iter(next(iter(rows.values())).values()))["similar"])
    head += [word for threshold in posthoc for word in (f"cos >= {threshold}", "Dice")]
    lines = [head]
    for operator, seeds in rows.items():
        runs = list(seeds.values())
        dice = [100 * run["dice"] for run in runs]
        distances = [value for run in runs for value in run["distance"].values()]
        cells = [operator, f"{statistics.fmean(dice):.2f}", f"{statistics.stdev(dice):.2f}" if len(dice) > 1 else "-"]
        cells += ["/".join(str(len(run[name])) for run in runs) for name in ("exactly_off", "unchanged_on_scans")]
        cells.append(f"{statistics.median(distances):.3f}" if distances else "-")
        cells += [
            f"{statistics.fmean(run['macs'][way] for run in runs) / 1e6:.2f}" for way in ("all sites", "bypassed")
        ]
        ways = ("plain, trained", "plain, bypassed")
        timed = [run["milliseconds"] for run in runs if "milliseconds" in run]
        cells += [f"{statistics.fmean(times[way] for times in timed):.3f}" if timed else "-" for way in ways]
        for threshold in posthoc:
            cells.append("/".join(str(len(run["similar"][threshold]["bypassed"])) for run in runs))
            cells.append(f"{100 * statistics.fmean(run['similar'][threshold]['dice'] for run in runs):.2f}")
        lines.append(cells)
    return str(aligned(lines))


def keep(
    name: str | None,
    runs: Sequence[Run],
    rows: dict[str, dict[str, Any]],
    device: str,
    thresholds: Sequence[float],
    sweep: Path,
) -> None:
    """Store the rows under a name, if there is one and there are any."""
    if name is None or not (found := in_order(rows)):
        return
    write_result(
        name,
        title="Operators at the sites of FHEAT-Seg after the same training: Dice, sites off, cost and time",
        command=f"fheat sweep {from_root(sweep)} --out OUT, then python studies/compare_mixers.py OUT --store {name} "
        f"--sweep {from_root(sweep)}",
        seed=sorted({int(seed) for seeds in found.values() for seed in seeds}),
        device=device,
        note="exactly_off: sites that are the identity for any input, by their parameters; unchanged_on_scans: sites "
        "whose output was their input on every window of the validation scans, bit for bit; distance: |output - input| "
        "/ |input|, cosine: their mean cosine there and cka: their linear CKA, of the sites that are not exactly off; "
        "milliseconds of one window in float32, batch 1; similar: what bypassing the sites above a cosine leaves. "
        f"Networks were trained on {runs[0].outcome.machine['name']}, and measured on the machine of this result. "
        "hd95 in " + ("voxels." if runs[0].outcome.scoring["voxels"] else "millimetres."),
        settings={
            **training_of(runs[0]),
            "counter": COUNTER,
            "thresholds": list(thresholds),
            "not_run": not_run(found),
        },
        results=found,
        out=ROOT / "benchmarks" / "results" / f"{name}.json",
    )


if __name__ == "__main__":
    tyro.cli(main)
