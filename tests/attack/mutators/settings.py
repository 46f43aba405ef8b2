"""Settings and sweeps in TOML: values of other types and sizes, names, depth, grids of astronomical size, bytes."""

import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import tomli_w

from fheat.experiments.sweep import read_sweep
from fheat.training.settings_sources import make_settings, read_settings, to_toml
from tests.attack.kinds import Kind, Made, Recipe, contradiction, doubtful
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.mutators.trees import apply_tree, draw_tree, with_depth


@cache
def base() -> str:
    """Return the settings of a run, all of them."""
    return to_toml(make_settings({"data": "scans", "labelled": 2, "iterations": 10, "patch_size": (32, 32, 32)}))


def _toml(tree: Any) -> bytes:
    """Return a tree as TOML; what TOML cannot hold is left out."""
    return with_depth(tomli_w.dumps(_held(tree))).encode(errors="surrogatepass")


def _held(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(key): _held(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_held(value) for value in tree if value is not None]
    return tree


def _draw_config(random: Random) -> Recipe:
    return {"base": {}, "steps": draw_tree(random) if random.random() < 0.7 else draw_raw(random)}


def _make_config(recipe: Recipe, folder: Path) -> Made:
    content = apply_raw(base().encode(), recipe["steps"])
    if content == base().encode():
        content = _toml(apply_tree(tomllib.loads(base()), recipe["steps"]))
    return Made({"config.toml": content}, doubtful("any setting may be meant", True))


def _read_config(folder: Path) -> Any:
    settings = read_settings(folder / "config.toml")
    (folder / "again.toml").write_text(to_toml(settings))
    return settings == read_settings(folder / "again.toml")


def _draw_sweep(random: Random) -> Recipe:
    chance = random.random()
    if chance < 0.15:
        lengths = [random.choice((1, 2, 20, 10_000)) for _ in range(random.choice((1, 2, 3)))]
        return {"base": {}, "steps": [["grid", *lengths]]}
    return {"base": {}, "steps": draw_tree(random) if chance < 0.75 else draw_raw(random)}


SCANS = ("a", "b", "c", "d")


def _dataset(folder: str) -> dict[str, bytes]:
    """Return the files of a dataset whose scans are listed but never opened."""
    listed = ", ".join(f'{{"image": "{name}.nii", "label": "{name}-label.nii"}}' for name in SCANS)
    return {f"{folder}/dataset.json": f'{{"training": [{listed}], "test": [{listed}]}}'.encode()}


def _make_sweep(recipe: Recipe, folder: Path) -> Made:
    settings = {"data": str(folder / "scans"), "method": "supervised", "labelled": 2}
    tree: dict[str, Any] = {
        "settings": settings,
        "scoring": {"split": "test"},
        "grid": {"seed": [0, 1], "clip": [1.0, "none"]},
        "run": [{"name": "one"}, {"name": "two", "network": {"kan_ratio": 2}}],
    }
    steps = recipe["steps"]
    verdict = doubtful("any sweep may be meant", True)
    if steps[0][0] == "grid":
        names = ("seed", "iterations", "labelled")
        tree["grid"] = {name: list(range(1, count + 1)) for name, count in zip(names, steps[0][1:], strict=False)}
        del tree["run"]
        runs = 1
        for count in steps[0][1:]:
            runs *= count
        verdict = contradiction(f"a sweep of {runs:,} runs") if runs > 10**6 else verdict
    text = _toml(tree)
    content = apply_raw(text, steps)
    if content == text and steps[0][0] != "grid":
        content = _toml(apply_tree(tree, steps))
    return Made({"sweep.toml": content, **_dataset("scans")}, verdict)


def _read_sweep(folder: Path) -> Any:
    runs = read_sweep(folder / "sweep.toml").runs
    return len({run.name.lower() for run in runs}) == len(runs) > 0


KINDS = (
    Kind("config", _draw_config, _make_config, _read_config, weight=3),
    Kind("sweep", _draw_sweep, _make_sweep, _read_sweep, weight=2),
)
