"""The tasks that describe what is on disk: models with their gates, and runs with their curves."""

import math
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from fheat.gates.cost import cost
from fheat.gates.hook import with_gates_of
from fheat.gates.table import allocation
from fheat.models.folder import load, read_manifest
from fheat.models.zoo import MANIFEST, find_folder, zoo_folder, zoo_names
from fheat.networks.registry import spec_of
from fheat.system.claims import holder
from fheat.system.errors import BadInput
from fheat.system.progress import Progress
from fheat.training.run_folder import CLAIMS, RunFolder
from fheat.training.runs import RunHistory, is_run_folder, read_history

RADII: Final = np.linspace(0, np.pi, 65)
"""Frequencies at which the response of a gate is given."""
MOST_POINTS: Final = 2000
"""Largest number of iterations of a curve; a longer one is thinned evenly."""
_MODALITY: Final = {"MRI": "MR", "MR": "MR", "CT": "CT"}


def describe_models(folder: Path, arguments: dict[str, Any], progress: Progress) -> list[dict[str, Any]]:
    """Return what the cards say of the models in `sources`, which are (name, folder, source), and of those in the zoo.

    A folder without a model that can be read is left out.
    """
    zoo = [(name, str(zoo_folder(name)), "zoo") for name in zoo_names()]
    found = [(name, source, _model(Path(path))) for name, path, source in (*arguments["sources"], *zoo)]
    return [{"name": name, "source": source, **facts} for name, source, facts in found if facts is not None]


def _model(folder: Path) -> dict[str, Any] | None:
    try:
        found = find_folder(folder)
        manifest = read_manifest(found)
    except (BadInput, OSError):
        return None
    card, network = manifest.card, manifest.network
    word = re.search(r"\b(MRI|MR|CT)\b", f"{card.title} {card.data}")
    return {
        "folder": str(found),
        "title": card.title or network.name,
        "classes": {name: value for value, name in enumerate(card.label_names(network.out_channels), start=1)},
        "channels": network.in_channels,
        "modality": _MODALITY[word[1]] if word else None,
    }


def describe_allocation(folder: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the gates of the network in `model`, their responses exp(-(D r)^alpha), and its cost.

    `all_open` is the cost of the same network before training, whose gates are all open.
    """
    model = load(Path(arguments["model"])).float()
    gates = [
        {
            "site": row.site,
            "D": row.D,
            "alpha": row.alpha,
            "state": row.state,
            "open": row.state == "open",
            "grid": row.grid,
            "response": [[round(float(r), 4), round(math.exp(-((row.D * r) ** row.alpha)), 6)] for r in RADII],
        }
        for row in allocation(model)
    ]
    now, before = cost(model), cost(with_gates_of(spec_of(model).build(), model))
    counted = {name: {"macs": one.macs, "transform": one.transform} for name, one in _pairs(before, now)}
    return {"gates": gates, "cost": counted | {"counter": now.counter, "shape": now.shape}}


def _pairs(before: Any, now: Any) -> tuple[tuple[str, Any], ...]:
    return ("all_open", before), ("retired", now)


def list_runs(folder: Path, arguments: dict[str, Any], progress: Progress) -> list[dict[str, Any]]:
    """Return the runs in a folder: the folder itself, or those in it, at most two levels down."""
    root = Path(arguments["runs"])
    folders = [root] if is_run_folder(root) else [*root.glob("*"), *root.glob("*/*")]
    return [
        {"id": _run_id(root, run), "folder": str(run), **_run(run)} for run in sorted(folders) if is_run_folder(run)
    ]


def _run_id(root: Path, run: Path) -> str:
    return ".".join(run.relative_to(root).parts) or run.resolve().name


def _run(folder: Path) -> dict[str, Any]:
    try:
        settings = RunFolder(folder).settings()
    except BadInput as error:
        return {"network": "", "method": "", "iteration": 0, "iterations": 0, "state": "stopped", "error": error.reason}
    try:
        history = read_history(folder)
    except BadInput:  # nothing is logged yet
        history = None
    best = None if history is None else max((one.mean for one in history.validations), default=None)
    return {
        "network": settings.network.name,
        "method": settings.method.name,
        "iteration": 0 if history is None else history.done,
        "iterations": settings.schedule.iterations,
        "state": _state(folder, history),
        "best_dice": best,
        "has_model": any((folder / part / MANIFEST).is_file() for part in ("best", "final")),
    }


def _state(folder: Path, history: RunHistory | None) -> str:
    if history is not None and history.finished:
        return "done"
    return "stopped" if holder(folder / CLAIMS) is None else "running"


def describe_run(folder: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the curves of the run in `run` behind the iteration `after`: losses, validation Dice, gates."""
    run, after = Path(arguments["run"]), arguments["after"]
    try:
        history = read_history(run)
    except BadInput as error:
        return {"points": [], "iteration": 0, "state": _state(run, None), "note": error.reason}
    validated = {one.iteration: one.mean for one in history.validations}
    steps = {int(step["iteration"]): step for step in history.steps}
    wanted = [iteration for iteration in sorted(steps.keys() | validated.keys()) if iteration > after]
    every = max(1, math.ceil(len(wanted) / MOST_POINTS))
    shown = [one for number, one in enumerate(wanted) if number % every == 0 or one in validated or one == wanted[-1]]
    points = []
    for iteration in shown:
        step = steps.get(iteration, {})
        points.append(
            {
                "iteration": iteration,
                "losses": {name: _finite(step[name]) for name in history.losses if name in step},
                "dice": validated.get(iteration),
                "gates": {
                    site: {"D": step[f"D.{site}"], "alpha": step[f"alpha.{site}"], "open": step[f"D.{site}"] != 0}
                    for site in history.sites
                    if step
                },
            }
        )
    return {"points": points, "iteration": history.done, "state": _state(run, history)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
