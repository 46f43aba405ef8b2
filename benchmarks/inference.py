"""Segment a CT-size volume within its memory bound, and time volumes of growing size: `python benchmarks/inference.py`.

Each volume is written as a NIfTI file and segmented by `fheat predict` in a process of its own, as a user would:
FHEAT-Seg with all gates closed, 112x112x80 windows with half overlap. The result holds the bound that the program
printed, the peak resident memory that the system reports, seconds and windows. A picture shows time over voxels.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
from record import ROOT, arguments, write_result

from fheat import Card, __version__, create_model, save
from fheat.io import Volume, write_nifti
from fheat.ops.gates import gates_of
from fheat.system.machine import machine

matplotlib.use("Agg")
from matplotlib import pyplot as plt

LARGE = (512, 512, 600)
GROWING = ((168, 168, 160), (224, 224, 200), (280, 280, 280), (336, 336, 400))
PICTURE = ROOT / "docs" / "images" / "inference-scaling.png"
RUN = """
import sys
from fheat.cli.main import main
code = main(sys.argv[1:])
# Not ru_maxrss, which a new process inherits from the one that started it.
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""


def closed_model(folder: Path) -> Path:
    torch.manual_seed(0)
    model = create_model("fheat_seg")
    for gate in gates_of(model).values():
        gate.delta.data.fill_(-1.0)
    return save(model, folder, Card(title="benchmark", classes=("background", "organ")))


def segment(model: Path, shape: tuple[int, ...], folder: Path, device: str) -> dict[str, object]:
    scan = folder / f"{'x'.join(map(str, shape))}.nii"
    noise = np.random.default_rng(0).integers(-1000, 1000, shape, dtype=np.int16)
    write_nifti(Volume(noise, np.diag([0.7, 0.7, 1.0, 1.0])), scan)
    command = [sys.executable, "-c", RUN, "predict", str(model), str(scan), str(folder / "out"), "--device", device]
    done = subprocess.run([*command, "--json", "--overwrite"], capture_output=True, text=True, check=True)
    *record, peak = done.stdout.strip().split("\n")
    (case,) = json.loads("\n".join(record))["cases"]
    scan.unlink()
    bound = case["memory_bound_bytes"]
    row = {"shape": shape, "windows": case["windows"], "seconds": case["seconds"], "bound_bytes": bound}
    row |= {"peak_bytes": int(peak), "peak_over_bound": round(int(peak) / bound, 3)}
    print(json.dumps(row), flush=True)
    return row


def draw(rows: list[dict[str, object]]) -> None:
    voxels = np.array([np.prod(row["shape"]) / 1e6 for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    figure, plot = plt.subplots(figsize=(5, 3.4), dpi=120, layout="constrained")
    plot.plot(voxels, seconds, "o", color="tab:blue")
    slope = (voxels @ seconds) / (voxels @ voxels)
    plot.plot([0, voxels.max()], [0, slope * voxels.max()], "--", color="tab:grey", label=f"{slope:.2f} s per million")
    plot.set(xlabel="million voxels", ylabel="seconds", title="one scan, end to end", xlim=(0, None), ylim=(0, None))
    plot.legend(frameon=False)
    figure.savefig(PICTURE)


def main() -> None:
    options = arguments(__doc__, "inference", rounds=1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = closed_model(folder / "model")
        rows = [segment(model, shape, folder, options.device) for shape in (*GROWING, LARGE)]
    draw(rows)
    sizes, seconds = (
        np.log([value(row) for row in rows]) for value in (lambda r: np.prod(r["shape"]), lambda r: r["seconds"])
    )
    write_result(
        options.name,
        title="Memory bound, peak memory and time of fheat predict for volumes up to 512x512x600",
        command="python benchmarks/inference.py",
        seed=0,
        machine={**machine(options.device), "cores": os.cpu_count(), "fheat": __version__},
        settings={"network": "fheat_seg, all gates closed and retired, float32"},
        results={
            "volumes": rows,
            "exponent_of_time_over_voxels": round(float(np.polyfit(sizes, seconds, 1)[0]), 3),
        },
        out=options.out,
    )


if __name__ == "__main__":
    main()
