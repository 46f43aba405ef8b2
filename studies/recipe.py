"""The search for a recipe: candidates that differ from the defaults in one factor, on several datasets and seeds.

    python studies/recipe.py run DATA OUT --candidates base clip-none --tasks la-4 --seeds 0 1 --iterations 4000
    python studies/recipe.py table OUT --store benchmarks/results/recipe-cuda.json

DATA holds the folders la, brats and hippocampus. Every run keeps a moving average of its weights, which does not change
the training: the same run therefore tells what the network itself and its average reach, both as chosen on the
validation scans and after the last iteration. The validation scans that choose the iteration also judge it.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from record import write_result

from fheat.experiments.planned import PlannedRun, perform
from fheat.experiments.scoring import Scoring, score
from fheat.models.folder import load, save
from fheat.system.files import write_file
from fheat.system.processors import processors
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import make_settings
from fheat.training.trainer import Observer, Trainer
from fheat.training.validation import validate

AVERAGE = 0.999
CANDIDATES: dict[str, dict[str, Any]] = {
    "base": {},
    "clip-none": {"optimiser.clip": None},
    "clip-10": {"optimiser.clip": 10.0},
    "theta-10": {"optimiser.theta": 10.0},
    "decay-1e-2": {"optimiser.weight_decay": 1e-2},
    "intensity-none": {"preprocessing.intensity": "none"},
    "mirror": {"data.augment": "mirror"},
    "rate-3e-3": {"optimiser.learning_rate": 3e-3},
    "betas-0.99": {"optimiser.betas": (0.9, 0.99)},
    "warm-up-1500": {"schedule.warm_up": 1500},
    "box-labelled": {"method.box": "labelled"},
    "box-and-warm-up": {"method.box": "labelled", "schedule.warm_up": 1500},
    "ramp-1000": {"method.ramp": 1000},
    "final-only": {"network.gates": "final_only"},
}
"""Settings by name; each candidate differs from the defaults in one factor."""
LA = {"patch_size": (112, 112, 80)}
BRATS = {"patch_size": (96, 96, 96)}
HIPPOCAMPUS = {"patch_size": (32, 48, 32)}
TASKS: dict[str, tuple[str, dict[str, Any], Scoring]] = {
    "la-4": ("la", {**LA, "labelled": 4}, Scoring(stride=(18, 18, 4), largest_component=True)),
    "la-8": ("la", {**LA, "labelled": 8}, Scoring(stride=(18, 18, 4), largest_component=True)),
    "brats-25": ("brats", {**BRATS, "labelled": 25}, Scoring(stride=(64, 64, 64))),
    "hippocampus-8": ("hippocampus", {**HIPPOCAMPUS, "labelled": 8}, Scoring(voxels=False)),
}
"""Dataset, settings and scoring by name; windows are those of the benchmarks."""
KINDS = ("network, best", "network, last", "average, best", "average, last")
"""The networks that each run is judged by."""


class KeepUnaveraged(Observer):
    """Validates the network as it is beside its average, and keeps the best and the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.best, self.course = folder, -1.0, dict[int, float]()

    def due(self, trainer: Trainer) -> bool:
        """Return whether the average is validated now, too."""
        return trainer.done % trainer.settings.validation.every == 0 or trainer.at_end

    def look(self, trainer: Trainer) -> None:
        """Validate and keep."""
        prepared = trainer.prepared
        scores = validate(trainer.step.model, prepared.scans.validation, prepared.windows, prepared.classes)
        self.course[trainer.done] = statistics.fmean(scores.values())
        if self.course[trainer.done] > self.best:
            self.best = self.course[trainer.done]
            self._save(trainer, "best-unaveraged")

    def end(self, trainer: Trainer) -> None:
        """Keep the last one."""
        self._save(trainer, "final-unaveraged")

    def _save(self, trainer: Trainer, name: str) -> None:
        card = load(self.folder / "best").card
        save(trainer.step.model, self.folder / name, card, overwrite=True)


def planned(data: Path, task: str, candidate: str, seed: int, iterations: int, every: int) -> PlannedRun:
    """Return a run of a candidate on a task."""
    dataset, values, scoring = TASKS[task]
    settings: TrainSettings = make_settings(
        {
            "data": str(data / dataset),
            "seed": seed,
            "iterations": iterations,
            "warm_up": min(500, iterations // 8),
            "validate_every": every,
            "checkpoint_every": iterations,
            "optimiser.average": AVERAGE,
            **values,
            **CANDIDATES[candidate],
        }
    )
    return PlannedRun(f"{task}-{candidate}-{iterations}-seed-{seed}", settings, scoring)


def one(data: Path, out: Path, task: str, candidate: str, seed: int, iterations: int, every: int = 250) -> None:
    """Do one run and write OUT/results/NAME.json."""
    run = planned(data, task, candidate, seed, iterations, every)
    target = out / "results" / f"{run.name}.json"
    if target.is_file() and json.loads(target.read_text())["key"] == run.key:
        return
    folder = run.folder(out)
    keep = KeepUnaveraged(folder)
    outcome = perform(run, out, observers=[keep])
    scores = {"average, best": run.scores(out)}
    for name, part in (
        ("average, last", "final"),
        ("network, best", "best-unaveraged"),
        ("network, last", "final-unaveraged"),
    ):
        scores[name] = score(folder / part, run.settings, run.scoring)
    content = json.loads(outcome.model_dump_json()) | {
        "task": task,
        "candidate": candidate,
        "seed": seed,
        "unaveraged": keep.course,
        "scores": {name: by_case(table) for name, table in scores.items()},
    }
    write_file(target, (json.dumps(content) + "\n").encode())


def by_case(table: Any) -> dict[str, dict[str, list[float | None]]]:
    """Return Dice, 95HD and ASD of every case by class."""
    rows: dict[str, dict[str, list[float | None]]] = {}
    for row in table.rows:
        values = [row.scores[metric] for metric in ("dice", "hd95", "asd")]
        rows.setdefault(row.label, {})[row.case] = [None if v is None else round(v, 5) for v in values]
    return rows


def run(
    data: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional],
    /,
    candidates: tuple[str, ...] = tuple(CANDIDATES),
    tasks: tuple[str, ...] = tuple(TASKS),
    seeds: tuple[int, ...] = (0, 1),
    iterations: int = 4000,
    every: int = 250,
    lanes: int = 3,
) -> None:
    """Do all runs, `lanes` at a time, seed by seed, so that what is done first compares all candidates."""
    queue = [(seed, task, candidate) for seed in seeds for candidate in candidates for task in tasks]
    running: dict[str, subprocess.Popen[bytes]] = {}
    out.mkdir(parents=True, exist_ok=True)
    while queue or running:
        for name, process in list(running.items()):
            if process.poll() is not None:
                print(f"{time.strftime('%H:%M:%S')} {name}: exit {process.returncode}", flush=True)
                del running[name]
        if queue and len(running) < lanes:
            seed, task, candidate = queue.pop(0)
            name = f"{task}-{candidate}-{seed}"
            words = [str(data), str(out), task, candidate, str(seed), str(iterations), str(every)]
            log = open(out / f"{name}-{iterations}.log", "wb")  # noqa: SIM115 - the child writes to it
            running[name] = subprocess.Popen(
                [sys.executable, __file__, "one", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": str(max(1, processors() // lanes))},
            )
            continue
        time.sleep(0.5)


def means(rows: dict[str, dict[str, list[float | None]]]) -> tuple[float, float]:
    """Return the mean Dice and 95HD over classes and cases; an empty prediction has Dice 0 and no distance."""
    cells = [values for cases in rows.values() for values in cases.values()]
    distances = [values[1] for values in cells if values[1] is not None]
    distance = statistics.fmean(distances) if distances else math.nan
    return statistics.fmean(values[0] or 0.0 for values in cells), distance


def table(out: Annotated[Path, tyro.conf.Positional], /, store: Path | None = None) -> None:
    """Gather what all runs left, print the mean over seeds, and with --store FILE write the result.

    Runs that the file holds already are kept.
    """
    found: dict[str, Any] = {}
    if store is not None and store.is_file():
        found = json.loads(store.read_text())["results"]
    machine: dict[str, Any] = {}
    for path in sorted((out / "results").glob("*.json")):
        content = json.loads(path.read_text())
        machine, iterations = content["machine"], content["settings"]["schedule"]["iterations"]
        task = found.setdefault(content["task"], {"iterations": iterations, "candidates": {}})
        if task["iterations"] != iterations:
            raise SystemExit(f"{path}: has {iterations} iterations, the stored runs have {task['iterations']}")
        seeds = task["candidates"].setdefault(content["candidate"], {})
        seeds[str(content["seed"])] = {
            "scores": {kind: [round(value, 4) for value in means(rows)] for kind, rows in content["scores"].items()},
            "open": {
                site: [round(gate["D"], 3), round(gate["alpha"], 3)]
                for site, gate in content["gates"].items()
                if gate["closed_at"] is None
            },
            "closed_alphas": [round(g["alpha"], 3) for g in content["gates"].values() if g["closed_at"] is not None],
            "best_at": content["best_at"],
            "cases": content["scores"]["network, best"],
        }
    for name, task in found.items():
        print(f"\n{name}, {task['iterations']} iterations: Dice/95HD of " + "; ".join(KINDS))
        for candidate, seeds in task["candidates"].items():
            cells = []
            for kind in KINDS:
                values = [seed["scores"][kind] for seed in seeds.values()]
                cells.append("/".join(f"{statistics.fmean(column):.4f}" for column in zip(*values, strict=True)))
            print(f"{candidate:16} n={len(seeds)}  " + "  ".join(cells))
    if store is not None:
        write_result(
            store.stem,
            title="Candidates for the training recipe, one factor each: Dice and 95HD on the validation scans",
            command="python studies/recipe.py run DATA OUT, then python studies/recipe.py table OUT --store FILE",
            seed=None,
            machine=machine,
            note="Scores are [Dice, 95HD]; cases hold [Dice, 95HD, ASD] of the network that was best. The validation "
            "scans that chose the iteration also judge it. 95HD is in voxels, for hippocampus in millimetres.",
            settings={"candidates": CANDIDATES, "average": AVERAGE},
            results=found,
            out=store,
        )


def main(arguments: Sequence[str]) -> None:
    """Choose the command; `one` is called by `run`."""
    if arguments and arguments[0] == "one":
        data, out, task, candidate, seed, iterations, every = arguments[1:]
        one(Path(data), Path(out), task, candidate, int(seed), int(iterations), int(every))
    else:
        tyro.extras.subcommand_cli_from_dict({"run": run, "table": table}, args=list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
