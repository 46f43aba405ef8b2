"""Segmentation of one scan in memory by `Predictor`, with several networks; slow ones are timed on a part of it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.bench.plan import Networks, in_its_way
from fheat.bench.timing import Candidate, Timer, interleaved, ratios
from fheat.inference.predictor import Predictor
from fheat.inference.replay import Precision
from fheat.inference.runtimes import RuntimeName
from fheat.inference.windows import Triple, Windows
from fheat.system.text import grid_name


def scan_times(
    timer: Timer, networks: Networks, shape: Triple, windows: Windows, *, batch: int, longest: float
) -> dict[str, Any]:
    """Return times of `Predictor.segment` on a random scan, with torch or, for bfloat16 on a CPU, with OpenVINO.

    A network that would take more than `longest` seconds for the whole scan is timed on a part with a few windows, and
    its time is scaled by the number of windows; `scaled` has those networks and the number of windows that were timed.
    """
    draw = np.random.default_rng(timer.seed)
    scan = draw.standard_normal(shape, dtype=np.float32)
    part = scan[tuple(slice(length) for length in part_shape(shape, windows))]
    half, gpu = timer.precision == "bfloat16", timer.device.startswith("cuda")
    precision: Precision = "bfloat16" if half else "float32"
    runtime: RuntimeName = "openvino" if half and not gpu else "torch"
    predictors = {
        name: Predictor(
            network, windows=windows, batch=batch, device=timer.device, precision=precision, runtime=runtime
        )
        for name, network in networks.built.items()
    }
    count, few = (next(iter(predictors.values())).sliding(None).count(image.shape) for image in (scan, part))
    runs: dict[str, Candidate] = {}
    scaled: dict[str, int] = {}
    for name, predictor in predictors.items():
        on_part = in_its_way(name, _segment(predictor, part))
        first = int(gpu or runtime != "torch")  # there the first call chooses algorithms, compiles and allocates
        trial = interleaved({name: on_part}, 1, timer.device, warm_up=first, capture=False)[name] / 1e3
        slow = few < count and trial * count / few > longest
        runs[name] = on_part if slow else in_its_way(name, _segment(predictor, scan))
        if slow:
            scaled[name] = few
    times = timer.times(runs, warm_up=0, capture=False)
    seconds = {name: value / 1e3 * (count / few if name in scaled else 1) for name, value in times.items()}
    return {
        "shape": grid_name(shape),
        "window": grid_name(windows.size),
        "stride": grid_name(windows.stride),
        "windows": count,
        "batch": batch,
        "runtime": runtime,
        "seconds": seconds,
        "ratio": ratios(seconds),
        "scaled": scaled,
    }


def part_shape(shape: Triple, windows: Windows) -> Triple:
    """Return the shape of a part with two windows, or with one where the scan has no more."""
    length = min(shape[0], windows.size[0] + windows.stride[0])
    return length, min(shape[1], windows.size[1]), min(shape[2], windows.size[2])


def _segment(predictor: Predictor, image: NDArray[np.float32]) -> Candidate:
    return lambda: predictor.segment(image)
