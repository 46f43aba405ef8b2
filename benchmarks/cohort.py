"""Segment and score a cohort of CT-size scans: `python benchmarks/cohort.py --scans 1000 --device cuda`.

The scans are synthetic bodies with noise, `--shape` 512x512x300 voxels of int16 in .nii.gz. Eight are made, and the
cohort is links to them, as whoever reads one does not know of the others. The network of the zoo's la-4 takes them as
they are, in windows of 112x112x80 every `--stride` voxels, 18x18x4 as for LA; on a CPU torch runs it. Each way has a
process of its own: scans in turn, and scans that overlap. The result holds scans per minute, the share of the wall time
in which the device was busy with the network, and the peak resident memory beside the largest bound that was printed.
Loading the network and the first windows are not timed.

Then pairs of masks of the same size are scored by `evaluate_files`, one at a time and several at a time (`--workers`).
Only ratios are claimed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from record import arguments, write_result

from fheat.io import Volume, write_nifti
from fheat.metrics.files import evaluate_files

DISTINCT = 8
AFFINE = np.diag([0.8, 0.8, 1.5, 1.0])
RUN = """
import json, sys, time
import numpy as np
import torch
from fheat import Card, Predictor
from fheat.inference.folder import predict_folder
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.io import Volume
from fheat.system.allocator import return_large_blocks

scans, out, device, stride, overlap = sys.argv[1:]
return_large_blocks()
card = Card(classes=("background", "organ"), preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}})
windows = Windows((112, 112, 80), tuple(map(int, stride.split("x"))))
runtime = "torch" if device == "cpu" else "auto"
predictor = Predictor("la-4", card=card, windows=windows, device=device, runtime=runtime)
scan = Volume(np.random.default_rng(0).normal(size=(168, 168, 120)).astype(np.float32), np.eye(4))
predictor.memory(scan)  # before all else, as what the network loads now is part of the bound
predictor.segment(scan, check=False)
forward, seconds, events = SlidingWindow.forward, [], []


def metered(self, x):
    if device == "cpu":
        begin = time.perf_counter()
        y = forward(self, x)
        seconds.append(time.perf_counter() - begin)
        return y
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    y = forward(self, x)
    end.record()
    events.append((begin, end))
    return y


SlidingWindow.forward = metered
begin = time.perf_counter()
record = predict_folder(predictor, scans, out, overlap=overlap == "overlap")
wall = time.perf_counter() - begin
if events:
    torch.cuda.synchronize()
    seconds = [begin.elapsed_time(end) / 1000 for begin, end in events]
# Not ru_maxrss, which a new process inherits from the one that started it.
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
bound = max(scan.memory_bound_bytes for scan in record.cases)
hashes = [scan.mask_sha256 for scan in record.cases]
print(json.dumps([wall, sum(seconds), peak, bound, sum(scan.windows for scan in record.cases), hashes]))
"""


def body(shape: tuple[int, ...], seed: int) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Return a scan of an elliptic body in air with one organ, and the mask of the organ."""
    noise = np.random.default_rng(seed)
    x, y, z = np.ogrid[tuple(slice(-1, 1, length * 1j) for length in shape)]
    at, size = noise.uniform(-0.2, 0.2, 3), noise.uniform(0.2, 0.4, 3)
    bumps = 0.1 * np.sin(9 * x + seed) * np.cos(7 * y) * np.sin(5 * z)
    organ = (
        sum(((axis - middle) / half) ** 2 for axis, middle, half in zip((x, y, z), at, size, strict=True)) < 1 + bumps
    )
    inside = (x / 0.85) ** 2 + (y / 0.65) ** 2 + 0 * z < 1
    data = np.where(organ, 120, np.where(inside, 40, -1000)).astype(np.int16)
    for plane in data:
        plane += noise.normal(0, 20, plane.shape).astype(np.int16)
    return data, organ.astype(np.uint8)


def write_cohort(folder: Path, count: int, shape: tuple[int, ...]) -> None:
    """Write scans, masks that stand for predictions, and their references."""
    for number in range(count):
        for kind in ("scans", "predicted", "reference"):
            (folder / kind).mkdir(exist_ok=True)
        if number < DISTINCT:
            data, organ = body(shape, number)
            write_nifti(Volume(data, AFFINE), folder / "scans" / f"case{number:04d}.nii.gz")
            write_nifti(Volume(organ, AFFINE), folder / "reference" / f"case{number:04d}.nii.gz")
            write_nifti(Volume(np.roll(organ, 2, 0), AFFINE), folder / "predicted" / f"case{number:04d}.nii.gz")
            continue
        for kind in ("scans", "predicted", "reference"):
            os.link(folder / kind / f"case{number % DISTINCT:04d}.nii.gz", folder / kind / f"case{number:04d}.nii.gz")


def segment(folder: Path, device: str, stride: str, way: str, count: int) -> tuple[dict[str, object], list[str]]:
    """Segment the cohort in a process of its own; return what was measured, and the hashes of the masks."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, "-c", RUN, str(folder / "scans"), out, device, stride, way]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    wall, busy, peak, bound, windows, hashes = json.loads(said)
    row = {"wall_s": round(wall, 2), "scans_per_minute": round(60 * count / wall, 2), "windows": windows}
    row |= {"busy_s": round(busy, 2), "busy_share": round(busy / wall, 3)}
    row |= {"peak_bytes": peak, "bound_bytes": bound, "peak_over_bound": round(peak / bound, 3)}
    print(way, json.dumps(row), flush=True)
    return row, hashes


def score(folder: Path, workers: int) -> tuple[float, str]:
    """Score the masks; return the seconds and the table."""
    begin = time.perf_counter()
    table = evaluate_files(folder / "predicted", folder / "reference", labels={"organ": (1,)}, workers=workers)
    seconds = time.perf_counter() - begin
    print(f"{workers} at a time: {seconds:.1f} s", flush=True)
    return seconds, table.to_json()


def main() -> None:
    options = arguments(
        __doc__,
        "cohort",
        rounds=1,
        scans="number of scans (default: 12)",
        shape="size of a scan (default: 512x512x300)",
        stride="voxels between windows (default: 18x18x4)",
        workers="number of masks that are scored at a time (default: number of cores)",
        made="folder with a cohort that `write_cohort` has made (default: one is made)",
    )
    count, size, stride = int(options.scans or 12), options.shape or "512x512x300", options.stride or "18x18x4"
    workers = int(options.workers or os.cpu_count() or 1)
    rows, scored = {}, {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(options.made or place)
        if not options.made:
            write_cohort(folder, count, tuple(map(int, size.split("x"))))
        found = [
            (way, *segment(folder, options.device, stride, way, count))
            for _ in range(options.rounds)
            for way in ("in turn", "overlap")
        ]
        for way in ("in turn", "overlap"):
            rows[way] = min((row for name, row, _ in found if name == way), key=lambda row: row["wall_s"])
        times = {number: score(folder, number) for number in (1, workers)}
    for number, (seconds, _) in times.items():
        scored[f"{number} at a time"] = {
            "wall_s": round(seconds, 2),
            "cases_per_minute": round(60 * count / seconds, 1),
        }
    write_result(
        options.name,
        title="A cohort of scans segmented in turn and overlapping, and its masks scored one or several at a time",
        command=f"python benchmarks/cohort.py --scans {count} --shape {size} --stride {stride}"
        + (" --device cuda" if options.device == "cuda" else ""),
        seed=0,
        device=options.device,
        settings={
            "scans": count,
            "shape": size,
            "network": "la-4 without resampling, windows of 112x112x80",
            "stride": stride,
            "rounds": options.rounds,
            "unit": "the fastest round of each way; only ratios are claimed",
        },
        results={
            "segmented": rows,
            "time_of_overlap": round(rows["overlap"]["wall_s"] / rows["in turn"]["wall_s"], 3),
            "same_masks": len({tuple(hashes) for *_, hashes in found}) == 1,
            "scored": scored,
            "time_of_several": round(times[workers][0] / times[1][0], 3),
            "same_scores": len({table for _, table in times.values()}) == 1,
        },
        out=options.out,
    )


if __name__ == "__main__":
    main()
