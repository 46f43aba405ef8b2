"""Time masks from fewer windows and compare them with those of all: `python benchmarks/fewer_windows.py --data DATA`.

DATA holds the folders `la` and `hippocampus` in the nnU-Net layout, each with its splits.json. Of each dataset the
validation scans come first and then others, `--rounds` in all; the models are la-4 and hippocampus of the zoo. Every
scan is segmented in each way in turn, in one process with OpenVINO on two threads, from memory to memory, after
everything was compiled. Only ratios within one run are claimed.

- windows: number of windows that ran, over that of all windows;
- seconds: median time of a scan; `ratio` is that of each scan to the time of all its windows, and the median of these;
- dice: with the mask of all windows in float32, of the class where it is least; mean and least over the scans.
"""

import json
import statistics
import time
from pathlib import Path

import numpy as np
from record import arguments, write_result

from fheat import Predictor
from fheat.io import read_nifti
from fheat.metrics.masks import dice

MODELS = {"la": "la-4", "hippocampus": "hippocampus"}
WAYS = {
    "all": ("all", "float32"),
    "all bfloat16": ("all", "bfloat16"),
    "fast": ("fast", "float32"),
    "fast bfloat16": ("fast", "bfloat16"),
}


def predictor(model: str, choice: str, precision: str) -> Predictor:
    made = Predictor(model, device="cpu", runtime="openvino", precision=precision)
    made.windows = made.windows.fast() if choice == "fast" else made.windows
    return made


def scans(data: Path, count: int) -> list[Path]:
    first = json.loads((data / "splits.json").read_text())["validation"]
    every = sorted(path.name.removesuffix("_0000.nii.gz") for path in (data / "imagesTr").glob("*_0000.nii.gz"))
    cases = [*first, *(case for case in every if case not in first)]
    return [data / "imagesTr" / f"{case}_0000.nii.gz" for case in cases[:count]]


def compare(model: str, files: list[Path]) -> dict[str, dict[str, object]]:
    ways = {name: predictor(model, *way) for name, way in WAYS.items()}
    rows: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in WAYS}
    for way in ways.values():
        way.segment(read_nifti(files[0]))  # compiles
    for file in files:
        volume = read_nifti(file)
        expected, all_windows, all_seconds = np.empty(0), 1, 1.0
        for name, way in ways.items():
            windows = way.sliding(None).count(way.scan(volume).shape)
            begin = time.perf_counter()
            mask = way.segment(volume).data
            seconds = time.perf_counter() - begin
            if name == "all":
                expected, all_windows, all_seconds = mask, windows, seconds
            agreement = min(dice(mask == value, expected == value) for value in np.unique(expected) if value)
            rows[name].append((windows / all_windows, seconds, seconds / all_seconds, agreement))
        print(file.name, {name: [round(value, 4) for value in row[-1]] for name, row in rows.items()}, flush=True)
    return {name: summary(row) for name, row in rows.items()}


def summary(rows: list[tuple[float, float, float, float]]) -> dict[str, object]:
    windows, seconds, ratios, agreements = zip(*rows, strict=True)
    return {
        "windows": round(statistics.mean(windows), 3),
        "seconds": round(statistics.median(seconds), 3),
        "ratio": round(statistics.median(ratios), 3),
        "dice": {"mean": round(statistics.mean(agreements), 5), "least": round(min(agreements), 5)},
    }


def main() -> None:
    options = arguments(__doc__, "fewer-windows", rounds=20, data="folder of the datasets la and hippocampus")
    files = {name: scans(options.data / name, options.rounds) for name in MODELS}
    results = {name: {"scans": len(files[name]), **compare(model, files[name])} for name, model in MODELS.items()}
    write_result(
        options.name,
        title="Masks from fewer windows: time, share of the windows, and Dice with the masks of all windows",
        command="python benchmarks/fewer_windows.py --data DATA",
        seed=0,
        settings={"models": MODELS, "windows": "those of the models' cards, strides 18/18/4 for LA"},
        results=results,
        out=options.out,
    )


if __name__ == "__main__":
    main()
