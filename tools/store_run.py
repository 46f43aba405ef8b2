"""Store the settings and the log of a run, without its networks: `python tools/store_run.py RUN NAME --data LA`.

The folder studies/runs/NAME is then a run folder of settings and log alone. `fheat report studies/runs/NAME --out
page.html --figures DIR` draws every figure of it again. Losses and gates are kept with six digits and exact zeros, for
every fifth iteration of the first 500 and of the 500 after a perturbation, and for every fiftieth of the others.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import tyro
from results import RUNS

from fheat.system.files import write_file
from fheat.training.observers import gates_decide
from fheat.training.run_folder import CONFIG, LOG
from fheat.training.settings import ResearchSettings
from fheat.training.settings_sources import read_settings, to_toml


def kept(iteration: int, research: ResearchSettings) -> bool:
    first = gates_decide(iteration, research) and not gates_decide(iteration - 1, research)
    return first or iteration % (5 if gates_decide(iteration, research) else 50) == 0


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(inside) for name, inside in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main(run: Annotated[Path, tyro.conf.Positional], name: Annotated[str, tyro.conf.Positional], data: str) -> None:
    """Write studies/runs/NAME.

    Args:
        run: run folder.
        name: name of the stored folder.
        data: name of the dataset, in place of where it lay.
    """
    settings = read_settings(run / CONFIG, {"data": data})
    lines = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    for line in lines:
        line.pop("crc32", None)  # that of the line before it was rounded
    special = ("validation", "per_second", "probe")
    lines = [
        line
        for line in lines
        if any(key in line for key in special if key != "per_second")
        or ("per_second" in line and line["iteration"] % 1000 == 0)
        or (not any(key in line for key in special) and kept(line["iteration"], settings.research))
    ]
    write_file(RUNS / name / CONFIG, to_toml(settings).encode())
    write_file(RUNS / name / LOG, "".join(json.dumps(rounded(line)) + "\n" for line in lines).encode())
    print(f"{RUNS / name}: {len(lines)} lines")


if __name__ == "__main__":
    tyro.cli(main)
