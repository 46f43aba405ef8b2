"""Gather LA training runs into one result: `python studies/la.py RUNS --main NAME --machine RESULT`.

RUNS holds run folders of `fheat train`, NAME is the run whose log is kept. The result holds, for every run, the
settings that differ from the defaults, the validation Dice, iterations per second without validation and saving, the
gates at the end and when each of them closed. The commands of the runs are in docs/evidence/runs.md.
"""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import tyro
from record import ROOT, write_result

from fheat.training.checkpoints import flattened
from fheat.training.settings_sources import make_settings, read_settings

EVERY_SECOND, THEN_EVERY = 500, 50
"""The log keeps every second iteration up to number 500, then every fiftieth."""


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run that differ from the defaults, without the place of its data."""
    told = read_settings(folder / "config.toml")
    default = flattened(make_settings({"data": "", "method": told.method.name, "network": told.network.name}))
    return {
        name: value
        for name, value in flattened(told).items()
        if name in ("method.name", "network.name") or (name != "data.folder" and value != default.get(name))
    }


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
    title: str = "CSE on LA with 4 labels: validation Dice and gates, run by run",
    out: Path = ROOT / "benchmarks" / "results" / "la-4-cuda.json",
) -> None:
    """Write the result.

    Args:
        runs: folder with one run folder for each run.
        main: name of the run whose log is kept.
        machine: an earlier result of the same machine, from which its machine and versions are taken.
        wall_seconds: seconds of the main run with reading and validation; None where it was not alone.
        shared: names of runs that shared the GPU with another program, so that their speed says nothing.
        note: what the settings do not tell.
        title: what the result says, in one line.
        out: result file.
    """
    earlier = json.loads(machine.read_text())
    folders = {path.parent.name: path.parent for path in sorted(runs.glob("*/log.jsonl"))}
    found = {name: summary(folder) | {"alone": name not in shared} for name, folder in folders.items()}
    source = f"Every run names its seed in its settings, 0 where it names none. The machine is that of {machine.name}."
    write_result(
        out.stem,
        title=title,
        command="fheat train LA with the settings of each run, then python studies/la.py",
        seed=None,
        machine=earlier["machine"] | earlier["versions"],
        note=" ".join(text for text in (note, source) if text),
        settings={"data": "LA: 4 labelled, 68 unlabelled, 8 validation scans"},
        results={"wall_seconds": wall_seconds, "runs": found, "log": thinned(read_log(folders[main]))},
        out=out,
    )
    for name, run in found.items():
        open_gates = {site: gate["D"] for site, gate in run["gates"].items() if gate["closed_after"] is None}
        print(
            f"{name:40} best {run['best']['dice']:.4f} {run['per_second']:6.1f} it/s  {open_gates}  {run['settings']}"
        )


if __name__ == "__main__":
    tyro.cli(main)
