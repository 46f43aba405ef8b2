"""Time the way from the command to the first mask, in fresh processes: `python benchmarks/cold_start.py --data LA`.

The scan is the first validation scan of LA in the nnU-Net layout. Each round starts the program three times: without a
cache of compiled networks, with an empty one, and with the one that the start before has filled. Medians.

- command_s: `fheat predict la-4 SCAN OUT`, from the command to its end, previews left out;
- scan_s: one more scan in a process that has everything ready, which is the time of the scan itself;
- parts_s: the parts of a start, in the order in which they happen, each process once; `first scan` has the reading, all
  windows and the writing of the mask;
- ratio: a start over the scan itself.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import arguments, write_result

MODEL = "la-4"
PARTS = """
import time
start, parts = time.perf_counter(), {}
def lap(name):
    global start
    parts[name], start = time.perf_counter() - start, time.perf_counter()
import json, sys
import torch
lap("import torch")
from fheat import Predictor
import fheat.cli.predict
lap("import fheat")
predictor = Predictor(sys.argv[1], device="cpu", runtime="openvino")
lap("model")
predictor._run.prepare((1, *predictor.windows.size))
lap("compile or open")
for name in ("first scan", "second scan"):
    predictor.segment(sys.argv[2]).save(sys.argv[3])
    lap(name)
print(json.dumps(parts))
"""


def main() -> None:
    options = arguments(__doc__, "cold-start", rounds=3, data="LA in the nnU-Net layout")
    data = Path(options.data)
    scan = data / "imagesTr" / f"{json.loads((data / 'splits.json').read_text())['validation'][0]}_0000.nii.gz"
    commands: dict[str, list[float]] = {}
    parts: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(options.rounds):
            kept = folder / f"cache-{number}"
            for state, cache in (("no cache", ""), ("empty cache", str(kept)), ("filled cache", str(kept))):
                out = folder / f"{number} {state}"
                words = [sys.executable, "-m", "fheat", "predict", MODEL, str(scan), str(out), "--no-preview"]
                commands.setdefault(state, []).append(seconds(words, cache))
            for state, cache in (("no cache", ""), ("filled cache", str(kept))):
                words = [sys.executable, "-c", PARTS, MODEL, str(scan), str(folder / "mask.nii.gz")]
                parts.setdefault(state, []).append(json.loads(started(words, cache)))
    command = {state: round(statistics.median(times), 2) for state, times in commands.items()}
    split = {
        state: {part: round(statistics.median(row[part] for row in rows), 2) for part in rows[0]}
        for state, rows in parts.items()
    }
    alone = split["filled cache"].pop("second scan")
    split["no cache"].pop("second scan")
    write_result(
        options.name,
        title="From the command to the first mask of an LA scan, on a CPU",
        command="python benchmarks/cold_start.py --data LA",
        seed=0,
        settings={"model": MODEL, "rounds": options.rounds},
        results={
            "command_s": command,
            "scan_s": alone,
            "parts_s": split,
            "ratio": {state: round(value / alone, 2) for state, value in command.items()},
        },
        out=options.out,
    )


def started(words: list[str], cache: str) -> str:
    environment = {**os.environ, "FHEAT_CACHE": cache}
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def seconds(words: list[str], cache: str) -> float:
    start = time.perf_counter()
    started(words, cache)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
