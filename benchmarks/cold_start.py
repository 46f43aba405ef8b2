"""Time the way from the command to the first mask, in fresh processes: `python benchmarks/cold_start.py --data LA`.

It is what `fheat bench start` measures, see `fheat.bench.start`, with the model la-4 and the first validation scan of
LA in the nnU-Net layout. On a GPU, `--device cuda`, it adds

- train_s: `fheat train LA --labelled 4` with all scans of LA, from the command to the first line of its log,
  which it writes after 50 iterations. With `--kept` it starts with the cache of kernels in that folder alone, which
  earlier runs have filled: building them all takes a minute.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import arguments, write_result

from fheat.bench.process import environment_with_cache
from fheat.bench.start import EMPTY_CACHE, FILLED_CACHE, Start, runtime_of, start_times

MODEL = "la-4"


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
    start = Start(MODEL, scan, device, runtime_of(device))
    found = start_times({MODEL: start}, options.rounds, lambda done, total: print(f"{done} of {total}", flush=True))
    results = {name: found[MODEL][name] for name in ("command_s", "scan_s", "parts_s", "ratio")}
    if device == "cuda":
        results["train_s"] = train_times(data, options.rounds, Path(options.kept) if options.kept else None)
    write_result(
        options.name,
        title=f"From the command to the first mask of an LA scan, on a {'CPU' if device == 'cpu' else 'GPU'}",
        command="python benchmarks/cold_start.py --data LA"
        + (" --device cuda" if device == "cuda" else "")
        + (" --kept TRITON_CACHE/.." if options.kept else ""),
        seed=0,
        device=device,
        settings={"model": MODEL, "rounds": options.rounds},
        results=rounded(results),
        out=options.out,
    )


def train_times(data: Path, rounds: int, kept: Path | None) -> dict[str, float]:
    """Return the median seconds until training has logged its first iterations, by the state of the cache."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(rounds):
            cache = Path(name) / f"cache-{number}"
            states = {FILLED_CACHE: kept} if kept else {EMPTY_CACHE: cache, FILLED_CACHE: cache}
            for state, folder in states.items():
                seconds.setdefault(state, []).append(seconds_to_train(data, Path(name) / f"{number} {state}", folder))
                print(f"train, {state}: {seconds[state][-1]:.2f} s", flush=True)
    return {state: statistics.median(values) for state, values in seconds.items()}


def seconds_to_train(data: Path, out: Path, cache: Path) -> float:
    """Return the seconds from the command to the first line of the log, and stop the run there."""
    words = ["train", str(data), "--labelled", "4", "--out", str(out), "--device", "cuda", "--trust"]
    start, command = time.perf_counter(), [sys.executable, "-m", "fheat", *words]
    run = subprocess.Popen(command, env=environment_with_cache(cache), stdout=subprocess.DEVNULL)
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


def rounded(value: Any) -> Any:
    """Return a number, or all numbers of a mapping, with two decimals."""
    return {name: rounded(one) for name, one in value.items()} if isinstance(value, dict) else round(value, 2)


if __name__ == "__main__":
    main()
