"""Time the way from the command to the first mask, in fresh processes: `python benchmarks/cold_start.py --data LA`.

The scan is the first validation scan of LA in the nnU-Net layout. Each round starts the program without a cache of what
compilers made (on a CPU; on a GPU, `--device cuda`, Triton always keeps its kernels), with an empty one, and with the
one that the start before has filled. Medians.

- command_s: `fheat predict la-4 SCAN OUT`, on a CPU with `--runtime openvino`, from the command to its end, previews
  left out;
- scan_s: one more scan in a process that has everything ready, which is the time of the scan itself;
- parts_s: the parts of a start, in the order in which they happen, each process once; `first scan` has the reading, all
  windows and the writing of the mask;
- ratio: a start over the scan itself;
- train_s, on a GPU: `fheat train LA --labelled 4` with all scans of LA, from the command to the first line of its log,
  which it writes after 50 iterations. With `--kept` it starts with the cache of kernels in that folder alone, which
  earlier runs have filled: building them all takes a minute.

Python keeps the bytecode of what it has imported, as it does unless it is told otherwise.
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
device = sys.argv[4]
predictor = Predictor(sys.argv[1], device=device, runtime="openvino" if device == "cpu" else "auto")
lap("model")
if device == "cpu":
    predictor._run.prepare((1, *predictor.windows.size))
    lap("compile or open")
for name in ("first scan", "second scan"):
    predictor.segment(sys.argv[2]).save(sys.argv[3])
    lap(name)
print(json.dumps(parts))
"""


def main() -> None:
    options = arguments(
        __doc__,
        "cold-start",
        rounds=3,
        data="LA in the nnU-Net layout",
        kept="folder of Triton's kernels with which training starts (default: an empty one, then the same again)",
    )
    data, device = Path(options.data), options.device
    scan = data / "imagesTr" / f"{json.loads((data / 'splits.json').read_text())['validation'][0]}_0000.nii.gz"
    commands: dict[str, list[float]] = {}
    parts: dict[str, list[dict[str, float]]] = {}
    trains: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(options.rounds):
            states = {"empty cache": folder / f"cache-{number}", "filled cache": folder / f"cache-{number}"}
            if device == "cpu":
                states = {"no cache": None, **states}
            for state, cache in states.items():
                out = folder / f"{number} {state}"
                words = ["predict", MODEL, str(scan), str(out), "--no-preview", "--device", device]
                words += ["--runtime", "openvino"] if device == "cpu" else []  # auto would not compile for one scan
                commands.setdefault(state, []).append(seconds(words, cache))
                print(f"predict, {state}: {commands[state][-1]:.2f} s", flush=True)
            for state, cache in states.items():
                if state != "empty cache":
                    words = [sys.executable, "-c", PARTS, MODEL, str(scan), str(folder / "mask.nii.gz"), device]
                    parts.setdefault(state, []).append(json.loads(started(words, cache)))
            kept = {"filled cache": Path(options.kept)} if options.kept else states
            for state, cache in kept.items() if device == "cuda" else ():
                out = folder / f"{number} {state} run"
                trains.setdefault(state, []).append(seconds_to_train(data, out, cache))
                print(f"train, {state}: {trains[state][-1]:.2f} s", flush=True)
    command = medians(commands)
    split = {state: medians({part: [row[part] for row in rows] for part in rows[0]}) for state, rows in parts.items()}
    alone = [row.pop("second scan") for row in split.values()][-1]
    write_result(
        options.name,
        title=f"From the command to the first mask of an LA scan, on a {'CPU' if device == 'cpu' else 'GPU'}",
        command="python benchmarks/cold_start.py --data LA"
        + (" --device cuda" if device == "cuda" else "")
        + (" --kept TRITON_CACHE/.." if options.kept else ""),
        seed=0,
        device=device,
        settings={"model": MODEL, "rounds": options.rounds},
        results={
            "command_s": command,
            "scan_s": alone,
            "parts_s": split,
            "ratio": {state: round(value / alone, 2) for state, value in command.items()},
            **({"train_s": medians(trains)} if trains else {}),
        },
        out=options.out,
    )


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def surroundings(cache: Path | None) -> dict[str, str]:
    """Return the environment of a process that keeps what compilers make in a folder."""
    kept = {"FHEAT_CACHE": str(cache or "")} | ({"TRITON_CACHE_DIR": str(cache / "triton")} if cache else {})
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **kept}


def started(words: list[str], cache: Path | None) -> str:
    found = subprocess.run(words, env=surroundings(cache), check=True, capture_output=True, text=True)
    return found.stdout.splitlines()[-1]


def seconds(words: list[str], cache: Path | None) -> float:
    start = time.perf_counter()
    started([sys.executable, "-m", "fheat", *words], cache)
    return time.perf_counter() - start


def seconds_to_train(data: Path, out: Path, cache: Path | None) -> float:
    """Return the seconds from the command to the first line of the log, and stop the run there."""
    words = ["train", str(data), "--labelled", "4", "--out", str(out), "--device", "cuda", "--trust"]
    start = time.perf_counter()
    run = subprocess.Popen([sys.executable, "-m", "fheat", *words], env=surroundings(cache), stdout=subprocess.DEVNULL)
    log = out / "log.jsonl"
    try:
        while not (log.exists() and b"per_second" in log.read_bytes()):
            if run.poll() is not None:
                raise RuntimeError(f"fheat {' '.join(words)} ended with {run.returncode}")
            time.sleep(0.02)
        return time.perf_counter() - start
    finally:
        run.terminate()
        run.wait()


if __name__ == "__main__":
    main()
