"""One scan from memory to its mask, through `Predictor`: networks side by side, slow ones on a part of the scan."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.bench.networks import Networks
from fheat.bench.plan import Conditions, Triple, named
from fheat.bench.timing import Work, interleaved, ratios
from fheat.inference.predictor import Predictor
from fheat.inference.replay import Precision
from fheat.inference.runtimes import RuntimeName
from fheat.inference.windows import Windows


def scan_times(
    settings: Conditions, networks: Networks, shape: Triple, windows: Windows, *, batch: int, longest: float
) -> dict[str, Any]:
    """Time `Predictor.segment` on a random scan, by torch; bfloat16 on a CPU by OpenVINO.

    A network that would take more than `longest` seconds for the whole is timed on a part with a few windows, and its
    time scaled by their number; `scaled` names those and the windows that were timed.
    """
    draw = np.random.default_rng(settings.seed)
    scan = draw.standard_normal(shape, dtype=np.float32)
    part = scan[tuple(slice(length) for length in part_shape(shape, windows))]
    half, gpu = settings.precision == "bfloat16", settings.device.startswith("cuda")
    precision: Precision = "bfloat16" if half else "float32"
    runtime: RuntimeName = "openvino" if half and not gpu else "torch"
    predictors = {
        name: Predictor(
            network, windows=windows, batch=batch, device=settings.device, precision=precision, runtime=runtime
        )
        for name, network in networks.built.items()
    }
    count, few = (next(iter(predictors.values())).sliding(None).count(image.shape) for image in (scan, part))
    runs: dict[str, Work] = {}
    scaled: dict[str, int] = {}
    for name, predictor in predictors.items():
        on_part = _segment(predictor, part)
        first = int(gpu or runtime != "torch")  # where libraries choose, compile and allocate in the first run
        trial = interleaved({name: on_part}, 1, settings.device, warm_up=first, capture=False)[name] / 1e3
        slow = few < count and trial * count / few > longest
        runs[name] = on_part if slow else _segment(predictor, scan)
        if slow:
            scaled[name] = few
    times = settings.times(runs, warm_up=0, capture=False)
    seconds = {name: value / 1e3 * (count / few if name in scaled else 1) for name, value in times.items()}
    return {
        "shape": named(shape),
        "window": named(windows.size),
        "stride": named(windows.stride),
        "windows": count,
        "batch": batch,
        "runtime": runtime,
        "seconds": seconds,
        "ratio": ratios(seconds),
        "scaled": scaled,
    }


def part_shape(shape: Triple, windows: Windows) -> Triple:
    """Return the shape of a part with two windows, or with one where the scan is no longer than that."""
    length = min(shape[0], windows.size[0] + windows.stride[0])
    return length, min(shape[1], windows.size[1]), min(shape[2], windows.size[2])


def _segment(predictor: Predictor, image: NDArray[np.float32]) -> Work:
    return lambda: predictor.segment(image)
