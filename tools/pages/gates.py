"""Tables of docs/evidence/gates-elsewhere.md: gates in networks that are built without any."""

import tomllib
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from results import ROOT

from pages.common import giga, is_stored, span, stored, stored_head, table, with_source


def gates_elsewhere(result: str) -> str:
    """Return a line for each network and seed: Dice with gates and without, and the transforms before and after."""
    head = ["network", "seed", "iterations", "open", "Dice %, with gates", "retired", "plain"]
    head += ["G in all transforms", "left", "G in the rest"]
    rows = []
    for name, seed, run in _runs(result):
        scores = [f"{100 * run[kind]:.2f}" for kind in ("dice", "retired", "plain")]
        macs = [giga(run["macs"][kind]) for kind in ("all open", "left", "rest")]
        count = f"{len(_open(run))} of {len(run['sites'])}"
        rows.append([f"`{name}`", seed, str(run["iterations"]), count, *scores, *macs])
    return table(head, rows)


def gates_once_run(result: str) -> str:
    """Return all about a result where it is stored, else that it is not: networks, open gates, and the figure."""
    if not is_stored(result):
        return "No result of it is stored yet."
    missing = ", ".join(f"`{name}`" for name in stored_head(result).settings.get("not_run", ()))
    figure = result.rpartition("-")[0]
    parts = [
        gates_elsewhere(result) + (f"\n\nNot run: {missing}." if missing else ""),
        f"The logits of the retired network are those of the trained one, bit for bit, in {gates_equal(result)} runs. "
        "These gates are open at the end:",
        gates_kept(result),
        f"![Strength D over the iterations, one panel for each network](../images/{figure}.svg)",
    ]
    return with_source(result, "\n\n".join(parts))


def gates_planned(sweep: str) -> str:
    """Return the number of iterations that a sweep of `studies/gates` plans."""
    planned = tomllib.loads((ROOT / "studies" / "gates" / f"{sweep}.toml").read_text())
    return f"{planned['settings']['iterations']:,}"


def gates_kept(result: str) -> str:
    """Return a line for each gate that is open at the end."""
    head = ["network", "seed", "open behind", "grid", "channels", "D", "alpha", "passes at pi"]
    return table(
        head,
        [
            [
                *(f"`{name}`", seed, f"`{path}`", gate["grid"], str(gate["channels"])),
                *(f"{gate['D']:.4f}", f"{gate['alpha']:.4f}", f"{gate['passes']:.0%}"),
            ]
            for name, seed, run in _runs(result)
            for path, gate in _open(run).items()
        ],
    )


def gates_change(result: str, *networks: str) -> str:
    """Return by how many points gates change the Dice of a network, or of several: the lowest and the highest."""
    changes = {
        name: fmean(100 * (run["dice"] - run["plain"]) for run in stored(result)[name].values()) for name in networks
    }
    return span(sorted(changes.values()), "+.2f")


def gates_equal(result: str) -> str:
    """Return in how many of the runs the retired network has the outputs of the trained one, bit for bit."""
    equal = [run["retired_equal"] for _, _, run in _runs(result)]
    return f"{sum(equal)} of {len(equal)}"


def _runs(result: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, seeds in stored(result).items():
        for seed, run in seeds.items():
            yield name, seed, run


def _open(run: dict[str, Any]) -> dict[str, Any]:
    return {path: gate for path, gate in run["sites"].items() if gate["D"] > 0}
