"""Time windows of every network in the same runtimes, side by side: `python benchmarks/equal_terms.py`.

A comparison in which one network is compiled and another is not compares runtimes. Here every network runs in each
runtime, compiled the same way, on windows of 112x112x80. All take turns in one process; the times are medians, and the
ratios are to FHEAT-Seg as training left it (the zoo's la-4, closed gates retired) in the same runtime. Weights are
otherwise random: they change no time.

- On a CPU, one window at a time in float32 on two threads: plain PyTorch, `torch.compile`, OpenVINO with the network as
  it is traced, and OpenVINO with the network in the form that `fheat predict` gives it, which is made for FHEAT-Seg and
  serves some of the others in part.
- On a GPU, `--device cuda`, eight windows at a time, as prediction takes them: plain PyTorch, `torch.compile`, and
  plain PyTorch captured as a graph, in float32; the captured graph in bfloat16; and the same two with the fused kernels
  of this package, which are made for FHEAT-Seg and serve some of the others in part.
"""

import os
from collections.abc import Callable
from importlib.metadata import version

import torch
from record import arguments, write_result
from torch import Tensor, nn

from fheat import __version__, create_model, load, retire
from fheat.bench.timing import Timer, captured, interleaved, without_kernels
from fheat.inference.compilers import openvino_model
from fheat.inference.runtimes import CompiledRuntime
from fheat.ops import kernels
from fheat.system.machine import machine

os.environ["FHEAT_CACHE"] = ""
SIZE = (112, 112, 80)
BATCH = {"cpu": 1, "cuda": 8}
"""Number of windows at a time."""
FIRST = "fheat_seg (la-4)"
PEERS = ("light_unetr", "segformer3d", "mednext", "segresnet", "dynunet")
KERNELS = "fheat's kernels"
OWN_FORM = "openvino, fheat's form"
RUNTIMES = {
    "cpu": ("torch", "torch.compile", "openvino", OWN_FORM),
    "cuda": ("torch", "torch.compile", "graph", "graph, bfloat16", f"graph, {KERNELS}", f"graph, bfloat16, {KERNELS}"),
}
LARGEST_ERROR = {"cpu": 1e-3, "cuda": 1e-2}
"""Largest difference from plain PyTorch, relative to its largest output; a GPU multiplies in TF32 in convolutions."""
LARGEST_ERROR_HALF = 0.2
"""The same in bfloat16, with random weights: it finds a network that computes something else."""


def main() -> None:
    options = arguments(__doc__, "equal-terms", rounds=5)
    device = options.device
    if device == "cpu":
        torch.set_num_threads(2)
    torch.manual_seed(0)
    networks: dict[str, nn.Module] = {FIRST: retire(load("la-4")).eval().to(device)}
    networks |= {name: create_model(name, patch_size=SIZE).eval().to(device) for name in PEERS}
    x = torch.randn(BATCH[device], 1, *SIZE, device=device)
    with torch.no_grad():
        candidates = {
            f"{name} / {how}": prepared(network, how, x, device)
            for name, network in networks.items()
            for how in RUNTIMES[device]
        }
        times = interleaved(candidates, options.rounds, device, warm_up=1, capture=False)
    window = {name: {how: round(times[f"{name} / {how}"], 2) for how in RUNTIMES[device]} for name in networks}
    where = "two CPU threads" if device == "cpu" else "a GPU"
    write_result(
        options.name,
        title=f"Windows of FHEAT-Seg and its peers in the same runtimes, on {where}",
        command="python benchmarks/equal_terms.py" + (" --device cuda" if device == "cuda" else ""),
        seed=0,
        machine={
            **machine(device),
            "fheat": __version__,
            **({"openvino": version("openvino")} if device == "cpu" else {}),
        },
        settings={"window": SIZE, "windows_at_a_time": BATCH[device], "rounds": options.rounds},
        results={
            "window_ms": window,
            "ratio": {
                name: {how: round(row[how] / window[FIRST][how], 2) for how in RUNTIMES[device]}
                for name, row in window.items()
            },
        },
        out=options.out,
    )


def prepared(network: nn.Module, how: str, x: Tensor, device: str) -> Callable[[], object]:
    """Return a run of the network in a runtime, after it was compared with plain PyTorch."""
    half, graph = "bfloat16" in how, how.startswith("graph")
    timer = Timer(device, precision="bfloat16" if half else "float32")
    forward = timer.forward(compiled(network, how, x), x)
    outputs: list[Tensor] = []

    def run() -> None:
        outputs[:] = [forward()]  # type: ignore[list-item]

    with kernels.use("auto" if KERNELS in how else "never"):
        replay = captured(run) if graph else without_kernels(run)
    replay()
    with kernels.use("never"):
        expected = network(x)
    error = float((outputs[0] - expected).abs().max() / expected.abs().max())
    if not error <= (LARGEST_ERROR_HALF if half else LARGEST_ERROR[device]):
        raise RuntimeError(f"{type(network).__name__} by {how} is off by {error:.1g}")
    print(f"{type(network).__name__}, {how}: ready, off by {error:.1g}", flush=True)
    return replay


def compiled(network: nn.Module, how: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the network as a function in a runtime."""
    if how == "torch.compile":
        return torch.compile(network, dynamic=False)
    if how == "openvino":
        return as_traced(network, x)
    return CompiledRuntime(network, "openvino") if how == OWN_FORM else network


def as_traced(network: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the network as OpenVINO compiles it without any change, for windows of the shape of x."""
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1}
    run = openvino.Core().compile_model(openvino_model(network, x), "CPU", options)
    return lambda window: torch.from_numpy(run(window.numpy())[0])


if __name__ == "__main__":
    main()
