"""A sweep: the runs that a TOML file plans, with names made from what differs between them.

[settings]                  # of all runs, by the names that fheat train knows
data = "scans"
labelled = 4

[scoring]                   # see `scoring.Scoring`
split = "test"

[grid]                      # every combination of these values
clip = [1.0, "none"]
seed = [0, 1, 2]

[[run]]                     # or runs with names of their own; with a grid too, each of them with every combination
name = "two-fold"
network.kan_ratio = 2
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError

from fheat.experiments.planned import PlannedRun
from fheat.experiments.scoring import Scoring, cases_to_score
from fheat.networks.registry import model_options
from fheat.system.errors import BadInput
from fheat.system.settings import nearest, reason_of
from fheat.training.checkpoints import flattened
from fheat.training.prepare import build_network
from fheat.training.scans import open_run_dataset
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import load_toml, make_settings, short_to_dotted

TABLES: Final = ("settings", "scoring", "grid", "run")
LONGEST_NAME: Final = 150
"""Length of a name that still fits into a file name with a key and an ending."""
CHOICES: Final = ("data.folder", "network.name", "method.name")
"""Settings that decide which other settings there are, or what their defaults are."""
SEED: Final = "schedule.seed"
NOT_GIVEN: Final = object()
MOST_RUNS: Final = 1000
"""Runs that one file may plan; a few long lists in a grid would ask for more than there are atoms."""
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """Runs with different names and different settings."""

    runs: tuple[PlannedRun, ...]

    @property
    def varied(self) -> dict[str, dict[str, Any]]:
        """Return for every setting that was given different values, by a short label, its value in each run by name.

        A setting that some methods or networks do not have, or for which each has a default of its own, is not varied
        by that alone. A run whose method or network does not have a setting is left out there. The data, the network
        and the method come first, and the seed last.
        """
        settings = {run.name: flattened(run.settings) for run in self.runs}
        choices = {name: tuple(values[choice] for choice in CHOICES) for name, values in settings.items()}
        defaults = {choice: _defaults(*choice) for choice in set(choices.values())}
        known = dict.fromkeys(name for values in settings.values() for name in values)
        pairs = [(values, defaults[choices[name]]) for name, values in settings.items()]
        differ = [name for name in known if _is_varied(name, pairs)]
        differ.sort(key=lambda name: (name == SEED, name not in CHOICES))
        short = labels(differ)
        return {
            short[name]: {run: values[name] for run, values in settings.items() if name in values} for name in differ
        }


def _is_varied(name: str, runs: Iterable[tuple[Values, Values]]) -> bool:
    """Return whether runs, each by its settings and their defaults, differ in a setting that at least one was given."""
    pairs = [(repr(values.get(name, own[name])), repr(own[name])) for values, own in runs if name in own]
    different = len({value for value, _ in pairs}) > 1
    return different and (name in CHOICES or any(value != default for value, default in pairs))


def _defaults(data: str, network: str, method: str) -> dict[str, Any]:
    """Return all settings that a method and a network have, as they are where only these are chosen.

    Options of the network are in the settings of a run only where they were given.
    """
    chosen = make_settings({"data": data, "network": network, "method": method})
    return {f"network.{option}": NOT_GIVEN for option in model_options(network)} | flattened(chosen)


def read_sweep(path: str | Path) -> Sweep:
    """Return the runs that a file plans, or raise `BadInput` with the file and the field."""
    path = Path(path)
    content = load_toml(path)
    for name in content:
        if name not in TABLES:
            raise _refused(path, f"{name} does not exist{nearest(name, TABLES)}", f"use {', '.join(TABLES)}")
    tables = [_table(path, content, name) for name in ("settings", "scoring", "grid")]
    common, scoring, grid = _flat(tables[0]), _scoring(path, tables[1]), _flat(tables[2])
    named = _named_runs(path, content.get("run", []))
    if "grid" not in content and not named:
        raise BadInput(path, "plans no run: it has neither [grid] nor [[run]]", "add one of them")
    points = _points(path, grid, len(named) or 1) if "grid" in content else [{}]
    differ = [name for name, values in grid.items() if len(values) > 1]
    short, words = labels(differ), {key: _words(grid[key]) for key in differ}
    runs = []
    for (name, own), point in product(named or [("", {})], points):
        parts = [name, *(f"{short[key]}-{_word_of(point[key], grid[key], words[key])}" for key in differ)]
        whole = "-".join(part for part in parts if part) or "run"
        runs.append(_planned(path, whole, [common, own, point], scoring))
    _check(path, runs)
    return Sweep(tuple(runs))


def labels(names: Iterable[str]) -> dict[str, str]:
    """Return a short label for each dotted name: its last part, or all of it where two would be the same."""
    whole = list(names)
    last = {name: re.sub(r"^(network|method)\.name$|^(data)\.folder$", r"\1\2", name) for name in whole}
    last = {name: label.rpartition(".")[2] for name, label in last.items()}
    count = Counter(last.values())
    return {name: label if count[label] == 1 else name for name, label in last.items()}


def shown_value(value: Any) -> str:
    """Return a value as people write it: `none`, `0.01`, `32x32x32`; texts have spaces between them."""
    if isinstance(value, list | tuple):
        between = " " if any(isinstance(one, str) for one in value) else "x"
        return between.join(map(shown_value, value)) or "none"
    return {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))


def word(value: Any) -> str:
    """Return a value as part of a file name: `none`, `0.01`, `32x32x32`."""
    if isinstance(value, list | tuple):
        return "x".join(map(word, value)) or "none"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", shown_value(value))


def _words(values: Sequence[Any]) -> list[str]:
    """Return a word for each value; of values that file names cannot tell apart, later ones have a number."""
    words: list[str] = []
    for value in values:
        one = word(value)
        count = sum(earlier == one or earlier.startswith(f"{one}-again-") for earlier in words)
        words.append(f"{one}-again-{count + 1}" if count else one)
    return words


def _word_of(value: Any, values: Sequence[Any], words: Sequence[str]) -> str:
    """Return the word of this very value: 1 and 1.0 are equal and have different ones."""
    return next(one for other, one in zip(values, words, strict=True) if other is value)


def _planned(path: Path, name: str, layers: Sequence[Values], scoring: Scoring) -> PlannedRun:
    if len(name) > LONGEST_NAME:
        raise _refused(path, f"run: the name {name[:40]}... is too long", "give fewer values, or name the runs")
    short = _short_names(layers)
    given: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for number, layer in enumerate(layers):
        for key, value in layer.items():
            dotted = short.get(key, key)
            if seen.get(dotted, 0) > 0 or seen.get(dotted) == number:  # what is in [settings] may be replaced, once
                raise _refused(path, f"{dotted}: is given twice for the run {name}", "give it once")
            seen[dotted], given[dotted] = number, value
    if "data.folder" not in given:
        raise _refused(path, "data: is missing in [settings]", "name the dataset folder")
    try:
        return PlannedRun(name, make_settings(given, path), scoring)
    except BadInput as error:
        raise BadInput(path, f"{error.reason} (run {name})", error.remedy) from None
    except ValueError as error:
        raise _refused(path, f"run: {error}", "change it") from None


def _short_names(layers: Sequence[Values]) -> dict[str, str]:
    """Return the short names of settings, which depend on the method that the last of the layers to name one names."""
    named = [layer[key] for layer in layers for key in ("method", "method.name") if key in layer]
    try:
        return short_to_dotted(str(named[-1])) if named else short_to_dotted()
    except ValueError:  # an unknown method, which `make_settings` refuses
        return short_to_dotted()


def _check(path: Path, runs: Sequence[PlannedRun]) -> None:
    names: dict[str, PlannedRun] = {}
    for run in runs:
        if run.name.lower() in names:  # some file systems do not tell capitals from small letters
            raise _refused(path, f"run: two runs have the name {run.name}", "give them names of their own")
        same = next((other for other in names.values() if other.settings == run.settings), None)
        if same is not None:
            raise _refused(path, f"run: {same.name} and {run.name} have the same settings", "remove one")
        names[run.name.lower()] = run
    seen = {(run.settings.data.folder, run.settings.data.fold, run.scoring.split): run for run in runs}
    for (_, _, split), run in seen.items():
        try:
            cases_to_score(run.settings.data, split)
        except BadInput as error:
            raise _refused(path, f"data.folder: {error.path} {error.reason}", error.remedy) from None
    _check_gates(path, runs)


def _check_gates(path: Path, runs: Sequence[PlannedRun]) -> None:
    """Raise `BadInput` where gates are to be put into a network that has no place for them.

    A run would find out only after its scans are read, which may be hours after the sweep was begun.
    """
    gated: dict[tuple[str, tuple[int, ...]], PlannedRun] = {}
    for run in runs:
        if run.settings.network.instrument:
            gated.setdefault((repr(run.settings.network), run.settings.data.patch_size), run)
    for run in gated.values():
        case, *_ = open_run_dataset(run.settings.data).cases
        try:
            with torch.random.fork_rng(devices=[]):
                build_network(run.settings, len(case.images), 2)  # where modules lie does not depend on the classes
        except BadInput as error:
            raise _refused(path, f"{error.path}: {error.reason} (run {run.name})", error.remedy) from None


def _table(path: Path, content: Values, name: str) -> Values:
    table = content.get(name, {})
    if not isinstance(table, Mapping):
        raise _refused(path, f"{name}: is not a table", f"write [{name}] and the values below it")
    return table


def _flat(table: Values) -> dict[str, Any]:
    """Return a table by dotted or short names: `optimiser.clip = 1` and `"optimiser.clip" = 1` are the same."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and name in TrainSettings.model_fields:
            flat |= {f"{name}.{field}": one for field, one in value.items()}
        else:
            flat[name] = value
    return flat


def _scoring(path: Path, table: Values) -> Scoring:
    try:
        return Scoring.model_validate(table)
    except ValidationError as error:
        reason = reason_of(error, Scoring.model_fields)
        raise _refused(path, f"scoring.{reason}", f"[scoring] has {', '.join(Scoring.model_fields)}") from None


def _points(path: Path, grid: Values, named: int) -> list[dict[str, Any]]:
    """Return every combination of the values of a grid, the last name running fastest; each is for all named runs."""
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise _refused(
                path, f"grid.{name}: takes a list of values, not {repr(values)[:40]}", 'write for example ["a", "b"]'
            )
    if not grid:
        raise _refused(path, "grid: is empty", "name a setting and a list of its values")
    if (count := named * math.prod(len(values) for values in grid.values())) > MOST_RUNS:
        raise _refused(path, f"grid: plans {count:,} runs, over the limit of {MOST_RUNS:,}", "give fewer values")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _named_runs(path: Path, tables: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise _refused(path, "run: is not a list of tables", "write [[run]] above each run")
    for number, table in enumerate(tables, start=1):
        if not isinstance(table.get("name"), str) or not table["name"]:
            raise _refused(path, f"run {number}: has no name", 'add name = "..."')
    return [(table["name"], _flat({key: table[key] for key in table if key != "name"})) for table in tables]


def _refused(path: Path, reason: str, remedy: str) -> BadInput:
    return BadInput(path, f"field {reason}", remedy)
