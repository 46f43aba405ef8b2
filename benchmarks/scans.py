"""Time twenty scans from memory to memory on a GPU: `python benchmarks/scans.py --data LA --device cuda`.

`Predictor` runs the zoo's la-4 on the first twenty scans of LA, with windows of 112x112x80 and strides 18/18/4, from an
array in the host's memory to a mask there. The result holds the seconds of each round, the first of which builds the
kernels, and the Dice of every mask with that of plain PyTorch in float32 without TF32.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
from record import arguments, write_result

from fheat import Predictor
from fheat.inference.replay import Precision
from fheat.inference.windows import PRESETS
from fheat.io import read_nifti
from fheat.metrics.masks import dice
from fheat.ops import kernels

SCANS = 20


def first_scans(data: Path) -> list[np.ndarray]:
    paths = sorted((data / "imagesTr").glob("*_0000.nii*"))[:SCANS]
    return [np.asarray(read_nifti(path).data, dtype=np.float32) for path in paths]


def segment(scans: list[np.ndarray], device: str, precision: Precision, rounds: int) -> tuple[Predictor, list, list]:
    predictor = Predictor("la-4", windows=PRESETS["la"], device=device, precision=precision)
    seconds, masks = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        masks = [predictor.segment(scan) for scan in scans]
        seconds.append(round(time.perf_counter() - begin, 3))
    return predictor, masks, seconds


def main() -> None:
    options = arguments(__doc__, "scans", rounds=4, data="LA in the nnU-Net layout")
    scans = first_scans(options.data)
    with kernels.use("never"), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        _, expected, plain = segment(scans, options.device, "float32", 2)
    predictor, masks, seconds = segment(scans, options.device, "auto", options.rounds)
    agreement = [round(dice(mask > 0, other > 0), 6) for mask, other in zip(masks, expected, strict=True)]
    results = {
        "windows": sum(predictor.sliding(None).count(scan.shape) for scan in scans),
        "seconds": seconds,
        "plain_float32_seconds": plain,
        "dice": {"least": min(agreement), "mean": round(float(np.mean(agreement)), 6), "each": agreement},
    }
    print(predictor.precision, json.dumps(results))
    write_result(
        options.name,
        title="Time of twenty LA scans from memory to memory on a GPU, and their Dice with plain float32",
        command=f"python benchmarks/scans.py --data LA --device {options.device}",
        seed=0,
        device=options.device,
        settings={"scans": len(scans), "precision": predictor.precision},
        results=results,
        out=options.out,
    )


if __name__ == "__main__":
    main()
