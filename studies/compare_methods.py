"""The training methods side by side: what the runs of a sweep over methods and seeds reached on the validation scans.

    fheat sweep studies/methods/hippocampus-8.toml --out OUT --parallel 6
    python studies/compare_methods.py OUT --store methods-hippocampus-cuda
    python studies/compare_methods.py --stored methods-hippocampus-cuda

The last command prints the stored comparison: mean and standard deviation over the seeds of every method.

All runs of the sweep share network, scans, batch and number of iterations. The validation scans that choose the
iteration of each run also judge it.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro
from recipe import by_case, means
from record import ROOT, result_names, write_result

from fheat.experiments.planned import OUTCOME, SCORES, read_outcome
from fheat.metrics.table import Table


def main(
    out: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    store: str | None = None,
    stored: str | None = None,
    sweep: Path = Path("studies/methods/hippocampus-8.toml"),
) -> None:
    """Print Dice and 95HD of every run and store them under a name, or print a stored comparison.

    Args:
        out: folder of the sweep.
        store: name of the stored result.
        stored: name of a stored result, which is printed as it stands in docs/evidence/runs.md.
        sweep: file of the sweep, which the stored result names.
    """
    known = [name for name in result_names() if name.startswith("methods-")]
    if stored in known:
        show(stored)
    elif stored is not None or out is None:
        raise SystemExit(f"give the folder of a sweep, or --stored with one of {', '.join(known)}")
    else:
        gather(out, store, sweep)


def show(name: str) -> None:
    """Print a stored comparison as docs/evidence/runs.md has it, with its columns below each other."""
    from pages.methods import methods_table  # `record` has made tools/ known

    lines = [line.replace("`", "").strip("|").split("|") for line in methods_table(name).splitlines()]
    rows = [[cell.strip() for cell in line] for line in lines if set(line) != {"---"}]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def gather(out: Path, store: str | None, sweep: Path) -> None:
    """Print the runs of a sweep and store them under a name, if there is one."""
    methods: dict[str, dict[str, Any]] = {}
    machines: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    for path in sorted(out.glob(f"*/{OUTCOME}")):
        outcome, cases = read_outcome(path), by_case(Table.read(path.with_name(SCORES)))
        settings = outcome.settings
        machines.append(outcome.machine)
        common = {name: settings[name] for name in ("schedule", "network")} | {
            "labelled": settings["data"]["labelled"],
            "patch_size": settings["data"]["patch_size"],
        }
        dice, distance = means(cases)
        print(f"{outcome.name:24} Dice {100 * dice:.2f}  95HD {distance:.2f}  {outcome.skipped} updates skipped")
        methods.setdefault(settings["method"]["name"], {})[str(settings["schedule"]["seed"])] = {
            "dice": round(dice, 5),
            "hd95": round(distance, 4),
            "best_at": outcome.best_at,
            "skipped": outcome.skipped,
            "open": sorted(outcome.survivors),
            "device": outcome.machine["device"],
            "cases": cases,
        }
    if store is None:
        return
    common["schedule"] = {name: value for name, value in common["schedule"].items() if name != "seed"}
    devices = Counter(machine["device"] for machine in machines)
    (usual, _), *others = devices.most_common()
    note = "cases hold [Dice, 95HD, ASD] by class and scan; 95HD in millimetres. Several runs shared the machine."
    if others:
        note += f" {len(machines) - devices[usual]} of {len(machines)} runs were done on another device, see `device`."
    write_result(
        store,
        title="All training methods on one network and budget: Dice and 95HD on the validation scans",
        command=f"fheat sweep {sweep} --out OUT, then python studies/compare_methods.py OUT --store {store}",
        seed=sorted({int(seed) for seeds in methods.values() for seed in seeds}),
        machine=next(machine for machine in machines if machine["device"] == usual),
        note=note,
        settings=common,
        results=methods,
        out=ROOT / "benchmarks" / "results" / f"{store}.json",
    )
    if "supervised" in methods:  # the method that the others are compared with
        show(store)


if __name__ == "__main__":
    tyro.cli(main)
