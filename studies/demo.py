"""Compare training with unlabelled scans and with the labels alone, three seeds of the demo: `python studies/demo.py`.

The result holds what `fheat demo --json` prints for each seed, and the two Dice, the margin, the number of closed gates
and the seconds side by side. A seed decides synthetic scans, weights and steps; the settings are the demo's own. With
`--parallel 3` the seeds run at the same time; the seconds are then no longer those of a free machine, while those of
the processor nearly are. With `--data FOLDER --name hippocampus` the scans are those of a folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from record import write_result

SEEDS = (0, 1, 2)


def demo(seed: int, data: Path | None, name: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fheat", "demo", "--json", "--seed", str(seed), "--out", f"{folder}/demo"]
        command += [] if data is None else ["--data", str(data), "--trust"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, start_new_session=True)
        result = json.loads(ran.stdout)
    result["data"] = result["settings"]["data"] = name  # a folder of this machine says nothing
    print(f"seed {seed}: {summary(result)}", flush=True)
    return result


def summary(result: dict) -> dict:
    first = result["first_mask"]
    return {
        "seed": result["seed"],
        "cse": result["dice"]["cse"],
        "supervised": result["dice"]["supervised"],
        "margin": result["margin"],
        "gates_closed": len(result["closed_at"]),
        "new_scan_dice": result["new_scan_dice"],
        "first_mask_dice": None if first is None else first["dice"],
        "seconds": result["seconds"],
        "processor_seconds": result["processor_seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parallel", type=int, default=1, help="number of seeds that run at the same time (default: 1)"
    )
    parser.add_argument("--data", type=Path, help="dataset folder (default: synthetic scans)")
    parser.add_argument("--name", default="scans", help="what the result calls the scans of --data")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.parallel) as pool:
        results = list(pool.map(lambda seed: demo(seed, options.data, options.name), SEEDS))
    torch.set_num_threads(1)  # as the demo does
    synthetic = options.data is None
    path = write_result(
        "demo-cpu" if synthetic else f"demo-{options.name}-cpu",
        title="Dice of CSE and of supervised training in the demo, three seeds: "
        + ("synthetic scans" if synthetic else options.name),
        command=f"fheat demo --json --seed SEED{'' if synthetic else f' --data {options.name}'}",
        seed=list(SEEDS),
        settings={"parallel": options.parallel, "load": os.getloadavg()[0]},
        results={
            "by_seed": [summary(result) for result in results],
            "mean_margin": sum(result["margin"] for result in results) / len(results),
            "demos": results,
        },
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
