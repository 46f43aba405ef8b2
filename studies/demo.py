"""Compare training with unlabelled scans and with the labels alone, three seeds of the demo: `python studies/demo.py`.

The result holds what `fheat demo --json` prints for each seed, and the two Dice, the margin, the number of closed gates
and the seconds side by side. A seed decides scans, weights and steps; the settings are the demo's own. With
`--parallel 3 --threads 1` the seeds run at the same time; the seconds are then no longer those of a free machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
from record import write_result

SEEDS = (0, 1, 2)


def demo(seed: int, threads: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fheat", "demo", "--json", "--seed", str(seed), "--out", f"{folder}/demo"]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    result["settings"]["data"] = "scans"  # a temporary folder says nothing
    print(f"seed {seed}: {summary(result)}", flush=True)
    return result


def summary(result: dict) -> dict:
    return {
        "seed": result["seed"],
        "cse": result["dice"]["cse"],
        "supervised": result["dice"]["supervised"],
        "margin": result["margin"],
        "gates_closed": len(result["closed_at"]),
        "new_scan_dice": result["new_scan_dice"],
        "seconds": result["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parallel", type=int, default=1, help="number of seeds that run at the same time (default: 1)"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="number of threads of each (default: all)"
    )
    options = parser.parse_args()
    with ThreadPoolExecutor(options.parallel) as pool:
        results = list(pool.map(lambda seed: demo(seed, options.threads), SEEDS))
    torch.set_num_threads(options.threads)
    path = write_result(
        "demo-cpu",
        title="Dice of CSE and of supervised training on the demo's synthetic scans, three seeds",
        command="fheat demo --json --seed SEED",
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
