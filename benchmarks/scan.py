"""Time one scan on a CPU through every runtime, beside its peers: `python benchmarks/scan.py --data LA`.

All in one process and in turns, medians; only ratios are claimed. Windows of 112x112x80 in batches of four, one scan of
192x142x88 with strides 18/18/4 (54 windows); the network is the zoo's la-4 with its closed gates retired. `torch` is
that network as it is. SegResNet-16 is too slow for whole scans here: its time is that of its windows.

- window_ms: one window, by runtime and network;
- scan_s: `Predictor.segment`, after the first call has compiled;
- transform: what the one open gate of dec1 takes of a window: open minus closed, and timed by itself;
- agreement: Dice between masks of the validation scans, if --data names LA in the nnU-Net layout with its splits.json.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from math import prod
from pathlib import Path

import numpy as np
import torch
from record import arguments, write_result
from torch import Tensor, nn

from fheat import Predictor, __version__, create_model, load, retire
from fheat.bench.timing import interleaved
from fheat.inference.runtimes import CompiledRuntime
from fheat.inference.windows import PRESETS
from fheat.io import read_nifti
from fheat.metrics.masks import dice
from fheat.ops.gates import gates_of
from fheat.system.machine import machine

os.environ["FHEAT_CACHE"] = ""  # compiling is timed
SHAPE, SIZE, BATCH = (192, 142, 88), PRESETS["la"].size, 4
RUNTIMES = ("torch", "openvino", "openvino bfloat16")
Run = Callable[[Tensor], Tensor]


def zoo_network(open_gates: tuple[str, ...] | None = None) -> nn.Module:
    """Return la-4, with only these gates open if they are given, retired."""
    model = load("la-4")
    for site, gate in gates_of(model).items():
        if open_gates is not None and site not in open_gates and not gate.retired:
            gate.set_strength(0.0)
    return retire(model).eval()


def per_window(runs: dict[str, Run], rounds: int, batch: int = BATCH) -> dict[str, float]:
    x = torch.randn(batch, 1, *SIZE)
    times = interleaved({name: (lambda run=run: run(x)) for name, run in runs.items()}, rounds, "cpu")
    return {name: round(milliseconds / batch, 2) for name, milliseconds in times.items()}


def windows(network: nn.Module, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return milliseconds per window, and seconds until each runtime has compiled."""
    light, segres = create_model("light_unetr").eval(), create_model("segresnet").eval()
    runs: dict[str, Run] = {"torch": network, "light_unetr": light}
    setup = {}
    for name in ("onnx", "openvino"):
        begin = time.perf_counter()
        runs[name] = CompiledRuntime(network, name, precision="float32", batch=BATCH)
        runs[name](torch.zeros(1, 1, *SIZE))
        setup[name] = round(time.perf_counter() - begin, 1)
    runs["openvino bfloat16"] = CompiledRuntime(network, "openvino", precision="bfloat16", batch=BATCH)
    times = per_window(runs, rounds)
    slow = per_window({"torch": network, "segresnet_16": segres}, 2, batch=1)
    # Against torch in the same turns, so that both stand on one scale.
    times["segresnet_16"] = round(slow["segresnet_16"] / slow["torch"] * times["torch"], 1)
    return times, setup


def scans(network: nn.Module, rounds: int) -> dict[str, float]:
    la, scan = PRESETS["la"], np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    predictors = {
        "torch": Predictor(network, windows=la, runtime="torch"),
        "auto": Predictor(network, windows=la),
        "auto, bfloat16": Predictor(network, windows=la, precision="bfloat16"),
        "light_unetr": Predictor(create_model("light_unetr").eval(), windows=la, runtime="torch"),
    }
    runs = {name: (lambda one=one: one.segment(scan)) for name, one in predictors.items()}
    times = interleaved(runs, rounds, "cpu")
    assert predictors["auto"].runtime == "openvino"
    return {name: round(milliseconds / 1e3, 3) for name, milliseconds in times.items()}


def transform_share(rounds: int) -> dict[str, dict[str, float]]:
    opened, closed = zoo_network(("dec1",)), zoo_network(())
    gate = gates_of(opened)["dec1"]
    features = torch.randn(BATCH, 24, 28, 28, 20)
    times = per_window(
        {
            "torch open": opened,
            "torch closed": closed,
            "torch alone": lambda x: gate(gate(features)),  # a stage of one light block applies it twice
        },
        rounds,
    )
    times |= per_window(
        {
            "openvino open": CompiledRuntime(opened, "openvino", precision="float32", batch=BATCH),
            "openvino closed": CompiledRuntime(closed, "openvino", precision="float32", batch=BATCH),
            "openvino bfloat16 open": CompiledRuntime(opened, "openvino", precision="bfloat16", batch=BATCH),
            "openvino bfloat16 closed": CompiledRuntime(closed, "openvino", precision="bfloat16", batch=BATCH),
        },
        3 * rounds,
    )
    alone = times.pop("torch alone")
    share = {name: round(1 - times[f"{name} closed"] / times[f"{name} open"], 3) for name in RUNTIMES}
    return {"window_ms": times, "share": {**share, "torch, by itself": round(alone / times["torch open"], 3)}}


def agreement(data: Path) -> dict[str, object]:
    """Return Dice of the masks of every other way with those of torch and the dense windows."""
    dense = Predictor("la-4", runtime="torch")
    whole, half = (Predictor("la-4", runtime="openvino", precision=name) for name in ("float32", "bfloat16"))
    found: dict[str, list[float]] = {"openvino": [], "openvino bfloat16": []}
    for case in json.loads((data / "splits.json").read_text())["validation"]:
        volume = read_nifti(data / "imagesTr" / f"{case}_0000.nii.gz")
        expected = dense.segment(volume).data
        for name, predictor in zip(found, (whole, half), strict=True):
            found[name].append(dice(predictor.segment(volume).data > 0, expected > 0))
        print(case, {name: round(values[-1], 4) for name, values in found.items()}, flush=True)
    rows = {name: {"mean": statistics.mean(v), "least": min(v), "n": len(v)} for name, v in found.items()}
    return {
        "with": "torch, strides 18/18/4, the 8 validation scans of LA, la-4",
        "dice": {name: {key: round(value, 5) for key, value in row.items()} for name, row in rows.items()},
    }


def main() -> None:
    options = arguments(__doc__, "scan", rounds=9, data="LA in the nnU-Net layout, with splits.json")
    torch.manual_seed(0)
    network = zoo_network()
    count = PRESETS["la"].count(SHAPE)
    versions = {name: version(name) for name in ("onnx", "onnxruntime", "openvino")}
    results: dict[str, object] = {}

    def keep(**more: object) -> None:
        """Store what is known so far."""
        print(more, flush=True)
        results.update(more)
        write_result(
            options.name,
            title="Time of one LA scan through every CPU runtime, beside its peers, and how far the masks agree",
            command="python benchmarks/scan.py --data LA",
            seed=0,
            machine={**machine(), **versions, "fheat": __version__},
            settings={
                "unit": "medians of interleaved runs; only ratios are claimed",
                "rounds": options.rounds,
                "scan": {"shape": SHAPE, "voxels": prod(SHAPE), "windows": count},
            },
            results=results,
            out=options.out,
        )

    scan_s = scans(network, options.rounds)
    keep(scan_s=scan_s)
    with torch.inference_mode():
        keep(transform=transform_share(2 * options.rounds))
        window_ms, setup = windows(network, options.rounds)  # last: threads of ONNX Runtime go on spinning
        keep(window_ms=window_ms, setup_s=setup)
    scan_s["segresnet_16, from its windows"] = round(count * window_ms["segresnet_16"] / 1e3, 1)
    ratios = {f"to {name}": round(scan_s["auto"] / took, 4) for name, took in scan_s.items() if "auto" not in name}
    ratios["bfloat16 to auto"] = round(scan_s["auto, bfloat16"] / scan_s["auto"], 4)
    keep(scan_s=scan_s, ratios_of_auto=ratios)
    if options.data is not None:
        keep(agreement=agreement(options.data))


if __name__ == "__main__":
    main()
