"""Time windows of every network in the same runtimes, side by side: `python benchmarks/equal_terms.py`.

A comparison in which one network is compiled and another is not compares runtimes. Here every registered network runs
in each runtime, compiled the same way, on windows of 112x112x80. FHEAT-Seg is the one that training left (the zoo's
la-4, closed gates retired). Each of the others takes turns with it in one process; the times are medians, and a ratio
is to FHEAT-Seg in the same runtime and the same turns. The others have random weights, which change no time, and all
their gates are open. Their options are those with which `fheat models --cost` comes nearest to the published sizes, and
the network's defaults where nothing was published; the name of a row says which options are not the defaults.

- On a CPU, one window at a time in float32 on two threads: plain PyTorch, `torch.compile`, OpenVINO with the network as
  it is traced, and OpenVINO with the network in the form that `fheat predict` gives it, which is made for FHEAT-Seg and
  serves some of the others in part.
- On a GPU, `--device cuda`, eight windows at a time, as prediction takes them: plain PyTorch, `torch.compile`, and
  plain PyTorch captured as a graph, in float32; the captured graph in bfloat16; and the same two with the fused kernels
  of this package, which are made for FHEAT-Seg and serve some of the others in part.

Everything is compared with plain PyTorch before it is timed, and `error` has the difference. Where a runtime cannot run
a network, or gets it wrong, `not_run` has the reason. A network that takes more than 2 s has two turns.
`--networks a,b` measures only these and puts their rows into the stored file, if that is of the same machine, versions
and settings. The file is written after each network, so that a run that is ended keeps what it has measured.
"""

import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from record import arguments, write_result
from torch import Tensor, nn

from fheat import BadInput, __version__, create_model, list_models, load, retire
from fheat.bench.timing import Timer, captured, interleaved, without_kernels
from fheat.experiments.items.cost import cost_rows
from fheat.inference.compilers import openvino_model
from fheat.inference.runtimes import CompiledRuntime
from fheat.ops import kernels
from fheat.system.imports import openvino_core
from fheat.system.machine import machine

SIZE = (112, 112, 80)
BATCH = {"cpu": 1, "cuda": 8}
"""Number of windows at a time."""
FIRST = "fheat_seg (la-4)"
KERNELS = "fheat's kernels"
OWN_FORM = "openvino, fheat's form"
RUNTIMES = {
    "cpu": ("torch", "torch.compile", "openvino", OWN_FORM),
    "cuda": ("torch", "torch.compile", "graph", "graph, bfloat16", f"graph, {KERNELS}", f"graph, bfloat16, {KERNELS}"),
}
LARGEST_ERROR = 1e-2
"""Largest difference from plain PyTorch, relative to its largest output. A GPU multiplies in TF32 in convolutions, and
OpenVINO adds up the million voxels of an instance norm one by one in float32; some networks are off by 0.001."""
LARGEST_ERROR_HALF = 0.2
"""The same in bfloat16, with random weights: it finds a network that computes something else."""
SLOW_SECONDS, SLOW_ROUNDS = 2.0, 2
"""A network whose windows take longer than this in plain PyTorch has no more than so many turns."""
Run = Callable[[], object]
Found = dict[str, dict[str, Any]]


def main() -> None:
    options = arguments(__doc__, "equal-terms", rounds=5, networks="names of networks, with commas; all if none")
    device = options.device
    os.environ["FHEAT_CACHE"] = ""
    # All networks share one `forward`, of which torch.compile makes eight forms at most; a ninth network runs as it is.
    torch._dynamo.config.recompile_limit = 100
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if device == "cpu":
        torch.set_num_threads(2)
    asked = options.networks.split(",") if options.networks else [name for name in list_models() if name != "fheat_seg"]
    if unknown := set(asked) - set(list_models()):
        raise SystemExit(f"--networks: {', '.join(sorted(unknown))} is unknown; there are {', '.join(list_models())}")
    described = {
        **machine(device),
        "fheat": __version__,
        **({"openvino": version("openvino")} if device == "cpu" else {}),
    }
    settings = {"window": list(SIZE), "windows_at_a_time": BATCH[device], "rounds": options.rounds}
    found = stored_rows(options.out, described, settings) if options.networks else empty()
    torch.manual_seed(0)
    x = torch.randn(BATCH[device], 1, *SIZE, device=device)
    with torch.no_grad():
        trained = retire(load("la-4")).eval().to(device)
        expected = plain(trained, x)
        first = all_prepared(FIRST, trained, RUNTIMES[device], x, expected, device, found)
        for name in asked:
            label, network = built(name, device)
            try:
                measure(label, network, first, x, device, options.rounds, found)
            except Exception as error:  # one that fails, for lack of memory perhaps, must not cost the others
                not_run(label, "any runtime", error, found)
            del network
            gc.collect()
            torch.cuda.empty_cache()
            where = "two CPU threads" if device == "cpu" else "a GPU"
            write_result(
                options.name,
                title=f"Windows of FHEAT-Seg and its peers in the same runtimes, on {where}",
                command="python benchmarks/equal_terms.py" + (" --device cuda" if device == "cuda" else ""),
                seed=0,
                machine=described,
                settings=settings,
                results=summary(found, RUNTIMES[device]),
                out=options.out,
            )


def built(name: str, device: str) -> tuple[str, nn.Module]:
    """Return a network of published size and the name of its row, which says how its options differ from defaults."""
    chosen = {row.network: row.options for row in cost_rows(SIZE)}[name]
    words = ", ".join(f"{option}={value}" for option, value in chosen.items())
    network = create_model(name, patch_size=SIZE, **chosen).eval().to(device)
    return (f"{name} ({words})" if words else name), network


def measure(
    label: str, network: nn.Module, first: Mapping[str, Run], x: Tensor, device: str, rounds: int, found: Found
) -> None:
    """Time a network in every runtime that can run it, in turns with FHEAT-Seg, and add what was found."""
    expected = plain(network, x)
    start = time.perf_counter()
    plain(network, x)
    if time.perf_counter() - start > SLOW_SECONDS:
        rounds = min(rounds, SLOW_ROUNDS)
    runs = all_prepared(label, network, first, x, expected, device, found)
    turns = {f"{who} / {how}": run[how] for who, run in ((FIRST, first), (label, runs)) for how in runs}
    times = interleaved(turns, rounds, device, warm_up=1, capture=False)
    found["window_ms"][label] = {how: round(times[f"{label} / {how}"], 3) for how in runs}
    found["beside"][label] = {how: round(times[f"{FIRST} / {how}"], 3) for how in runs}
    found["rounds"][label] = rounds


def all_prepared(
    label: str, network: nn.Module, runtimes: Iterable[str], x: Tensor, expected: Tensor, device: str, found: Found
) -> dict[str, Run]:
    """Return a run of the network in every runtime that can run it, and note the reasons of the others."""
    found["not_run"] = {place: why for place, why in found["not_run"].items() if not place.startswith(f"{label} / ")}
    runs: dict[str, Run] = {}
    found["error"][label] = {}
    for how in runtimes:
        try:
            runs[how], error = prepared(network, how, x, expected, device)
        except Exception as failure:  # compilers raise whatever they like
            not_run(label, how, failure, found)
        else:
            found["error"][label][how] = float(f"{error:.2g}")
            print(f"{label}, {how}: ready, off by {error:.1g}", flush=True)
    return runs


def not_run(label: str, how: str, error: BaseException, found: Found) -> None:
    """Note why a runtime does not run a network."""
    found["not_run"][f"{label} / {how}"] = reason(error)
    print(f"{label}, {how}: {reason(error)}", flush=True)


def reason(error: BaseException) -> str:
    """Return in one line why a runtime does not run a network: what its compiler says, less a place in its source."""
    if isinstance(error, BadInput) and error.__context__ is not None:
        error = error.__context__
    lines = [line.strip() for line in str(error).splitlines() if not line.startswith("Check '")]
    return f"{type(error).__name__}: {' '.join(lines)}"[:300]


def plain(network: nn.Module, x: Tensor) -> Tensor:
    """Return what a network computes in plain PyTorch, when it has done so."""
    with kernels.use("never"):
        y: Tensor = network(x)
    if y.is_cuda:
        torch.cuda.synchronize()
    return y


def prepared(network: nn.Module, how: str, x: Tensor, expected: Tensor, device: str) -> tuple[Run, float]:
    """Return a run of the network in a runtime, and how far its output is from that of plain PyTorch."""
    half, graph = "bfloat16" in how, how.startswith("graph")
    timer = Timer(device, precision="bfloat16" if half else "float32")
    forward = timer.forward(compiled(network, how, x), x)
    outputs: list[Tensor] = []

    def run() -> None:
        outputs[:] = [forward()]  # type: ignore[list-item]

    with kernels.use("auto" if KERNELS in how else "never"):
        replay = captured(run) if graph else without_kernels(run)
    replay()
    error = float((outputs[0] - expected).abs().max() / expected.abs().max())
    if not error <= (LARGEST_ERROR_HALF if half else LARGEST_ERROR):
        raise RuntimeError(f"its output is off by {error:.1g} of the largest value")
    return replay, error


def compiled(network: nn.Module, how: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the network as a function in a runtime."""
    if how == "torch.compile":
        return torch.compile(network, dynamic=False)
    if how == "openvino":
        return as_traced(network, x)
    return CompiledRuntime(network, "openvino") if how == OWN_FORM else network


def as_traced(network: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the network as OpenVINO compiles it without any change, for windows of the shape of x."""
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1}
    run = openvino_core().compile_model(openvino_model(network, x), "CPU", options)
    return lambda window: torch.from_numpy(run(window.numpy())[0])


def empty() -> Found:
    """Return what is found before anything is measured."""
    return {"window_ms": {}, "beside": {}, "rounds": {}, "error": {}, "not_run": {}}


def stored_rows(path: Path, described: Mapping[str, Any], settings: Mapping[str, Any]) -> Found:
    """Return what an earlier run on the same machine found, to which rows are added; nothing where there is no file."""
    if not path.is_file():
        return empty()
    stored = json.loads(path.read_text())
    if {**stored["machine"], **stored["versions"]} != described or stored["settings"] != settings:
        raise SystemExit(
            f"{path}: has another machine, other versions or settings, and rows of both would not be on equal terms: "
            "measure all networks, without --networks, or write to another file with --out"
        )
    found: Found = {part: stored["results"].get(part, {}) for part in empty()}
    del found["window_ms"][FIRST]
    return found


def summary(found: Found, runtimes: tuple[str, ...]) -> dict[str, Any]:
    """Return the results to store: FHEAT-Seg has the median of its times beside the others."""
    first = {
        how: statistics.median(times)
        for how in runtimes
        if (times := [row[how] for row in found["beside"].values() if how in row])
    }
    ratio = {
        label: {how: round(value / found["beside"][label][how], 2) for how, value in row.items()}
        for label, row in found["window_ms"].items()
    }
    return {
        "window_ms": {FIRST: first, **found["window_ms"]},
        "ratio": {FIRST: dict.fromkeys(first, 1.0), **ratio},
        "beside": found["beside"],
        "rounds": found["rounds"],
        "error": found["error"],
        "not_run": found["not_run"],
    }


if __name__ == "__main__":
    main()
