"""Gather LA training runs into one result: `python benchmarks/la.py RUNS --main NAME`.

RUNS holds run folders of `fheat train`, NAME the one whose log is kept. Of every run: settings that differ from the
default, validation Dice, iterations per second without validation and saving, the gates at the end and when each
closed. The commands are in docs/training.md.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import tyro

from fheat.training.settings import TrainConfig, read_config

EVERY_SECOND, THEN_EVERY = 500, 50
"""The log is kept for every second iteration up to the first, then for every fiftieth."""


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def settings(folder: Path) -> dict[str, Any]:
    """Return what the run was told, where it differs from the defaults; not where its data lay."""
    told, default = (
        config.model_dump(mode="json") for config in (read_config(folder / "config.toml", {}), TrainConfig(data=""))
    )
    return {name: value for name, value in told.items() if name != "data" and value != default[name]}


def gates(log: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return D and alpha of every gate at the end, and the iteration from which on it is closed."""
    rows = [line for line in log if "total" in line]
    sites = [name.removeprefix("D.") for name in rows[0] if name.startswith("D.")]
    found: dict[str, dict[str, Any]] = {}
    for site in sites:
        open_at = [line["iteration"] for line in rows if line[f"D.{site}"] > 0]
        closed = rows[-1][f"D.{site}"] == 0
        found[site] = {
            "D": round(rows[-1][f"D.{site}"], 4),
            "alpha": round(rows[-1][f"alpha.{site}"], 4),
            "closed_after": max(open_at, default=0) if closed else None,
        }
    return found


def summary(folder: Path) -> dict[str, Any]:
    log = read_log(folder)
    curve = {line["iteration"]: round(line["validation"], 4) for line in log if "validation" in line}
    best = max(curve, key=lambda iteration: curve[iteration])
    return {
        "settings": settings(folder),
        "validation": curve,
        "best": {"iteration": best, "dice": curve[best]},
        "cases": next(line["cases"] for line in log if line["iteration"] == best and "cases" in line),
        "per_second": statistics.median(line["per_second"] for line in log if "per_second" in line),
        "skipped": max(line.get("skipped", 0) for line in log),
        "gates": gates(log),
    }


def thinned(log: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the columns of the log, for fewer iterations and with five digits."""
    rows = [
        line
        for line in log
        if "total" in line and line["iteration"] % (2 if line["iteration"] <= EVERY_SECOND else THEN_EVERY) == 0
    ]
    return {name: [float(f"{line[name]:.5g}") for line in rows] for name in rows[0]}


def main(
    runs: Annotated[Path, tyro.conf.Positional],
    /,
    main: str,
    machine: Path,
    wall_seconds: float | None = None,
    shared: tuple[str, ...] = (),
    note: str = "",
    out: Path = Path(__file__).parent / "results" / "la-4-cuda.json",
) -> None:
    """Write the result.

    Args:
        runs: folder with one run folder for each run.
        main: name of the run whose log is kept.
        machine: an earlier result of the same machine, to take the field `machine` from.
        wall_seconds: of the whole main run, reading of scans and validation included; None where it was not alone.
        shared: runs that had the GPU only in turns with another, so that their speed says nothing.
        note: what the settings do not tell.
        out: result file.
    """
    folders = {path.parent.name: path.parent for path in sorted(runs.glob("*/log.jsonl"))}
    result = {
        "command": "fheat train LA with the settings of each run, then python benchmarks/la.py",
        "data": "LA: 4 labelled, 68 unlabelled, 8 validation scans",
        "machine": json.loads(machine.read_text())["machine"],
        "wall_seconds": wall_seconds,
        "note": note,
        "runs": {name: summary(folder) | {"alone": name not in shared} for name, folder in folders.items()},
        "log": thinned(read_log(folders[main])),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    for name, run in result["runs"].items():
        open_gates = {site: gate["D"] for site, gate in run["gates"].items() if gate["closed_after"] is None}
        print(
            f"{name:40} best {run['best']['dice']:.4f} {run['per_second']:6.1f} it/s  {open_gates}  {run['settings']}"
        )


if __name__ == "__main__":
    tyro.cli(main)
