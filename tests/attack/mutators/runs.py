"""Run folders: checkpoints with changed bytes or numbers, and logs."""

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from fheat.training.checkpoints import Checkpoint, newest_checkpoint, save_checkpoint
from fheat.training.run_folder import CONFIG, LOG
from fheat.training.runs import read_history
from fheat.training.settings_sources import make_settings, to_toml
from tests.attack.kinds import Kind, Made, Recipe, doubtful, healthy
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.mutators.trees import apply_tree, draw_tree, with_depth


@cache
def checkpoints() -> dict[str, bytes]:
    """Return the files of two checkpoints, the newer one last."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for iteration in (10, 20):
            tensors = {"weight": torch.arange(6.0) + iteration, "step": torch.tensor(iteration)}
            facts = {"best": 0.5 + iteration / 100, "first": 40, "set": {"cases": ["a", "b"]}}
            save_checkpoint(folder, Checkpoint(iteration, tensors, facts))
        return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("step-*/*"))}


def _draw_checkpoint(random: Random) -> Recipe:
    chance = random.random()
    steps = [] if chance < 0.03 else draw_tree(random) if chance < 0.3 else draw_raw(random)
    return {"base": {"file": random.choice((1, 1, 1, 0, 2, 3))}, "steps": steps}


def _make_checkpoint(recipe: Recipe, folder: Path) -> Made:
    files = dict(checkpoints())
    names = sorted(files, key=lambda name: ("step-00000020" not in name, name))  # the files of the newer one first
    name = names[recipe["base"]["file"] % len(names)]
    steps = recipe["steps"]
    content = apply_raw(files[name], steps)
    if name.endswith(".json") and content == files[name] and steps:
        content = with_depth(json.dumps(apply_tree(json.loads(content), steps))).encode(errors="surrogatepass")
    newest = 20 if content == files[name] or "step-00000010" in name else 10
    if name.endswith(".json") and _same_json(content, files[name]):
        verdict = doubtful("only spaces differ", 20) if content != files[name] else healthy(20)
    else:
        verdict = healthy(newest)
    if name.endswith(".json") and b'"seal"' in files[name] and b'"seal"' not in content:
        verdict = doubtful("without its seal it looks like one of an older version")
    return Made({**files, name: content}, verdict)


def _same_json(first: bytes, second: bytes) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except (ValueError, RecursionError):
        return False


def _is_checkpoint(found: Any, iteration: int) -> bool:
    """Return whether the state is exactly that of the iteration, or of the one before where only spaces differ."""
    if found is None or found.iteration not in (iteration, 10):
        return False
    told = found.iteration
    return bool(
        torch.equal(found.tensors["weight"], torch.arange(6.0) + told)
        and found.facts == {"best": 0.5 + told / 100, "first": 40, "set": {"cases": ["a", "b"]}}
    )


@cache
def log() -> tuple[bytes, bytes]:
    """Return the settings and the log of a run of three iterations."""
    settings = make_settings({"data": "scans", "method": "supervised", "iterations": 3})
    step = {"total": 1.0, "norm": 2.0, "rate": 0.1, "D.enc1": 0.5, "alpha.enc1": 0.7}
    lines = [{"iteration": number, **step} for number in (1, 2, 3)]
    lines += [{"iteration": 3, "validation": 0.5, "cases": {"a": 0.5}}, {"iteration": 3, "per_second": 2.0}]
    return to_toml(settings).encode(), "".join(json.dumps(line) + "\n" for line in lines).encode()


def _draw_log(random: Random) -> Recipe:
    if random.random() < 0.5:
        return {"base": {}, "steps": draw_raw(random)}
    return {"base": {"line": random.randrange(5)}, "steps": draw_tree(random)}


def _make_log(recipe: Recipe, folder: Path) -> Made:
    config, text = log()
    steps = recipe["steps"]
    if "line" in recipe["base"]:
        lines = text.decode().splitlines()
        number = recipe["base"]["line"]
        lines[number] = with_depth(json.dumps(apply_tree(json.loads(lines[number]), steps)))
        text = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
    else:
        text = apply_raw(text, steps)
    return Made({f"run/{CONFIG}": config, f"run/{LOG}": text}, doubtful("a log is for people"))


KINDS = (
    Kind("checkpoint", _draw_checkpoint, _make_checkpoint, newest_checkpoint, _is_checkpoint, weight=3),
    Kind("log", _draw_log, _make_log, lambda folder: read_history(folder / "run"), weight=2),
)
