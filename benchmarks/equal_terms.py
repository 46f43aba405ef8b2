"""Time one window of every network in the same runtimes, side by side: `python benchmarks/equal_terms.py`.

A comparison in which one network is compiled and another is not compares runtimes. Here every network runs in plain
PyTorch, through `torch.compile` and through OpenVINO, each compiled the same way, on one 112x112x80 window in float32
on two threads. All take turns in one process; the times are medians, and the ratios are to FHEAT-Seg as training left
it (the zoo's la-4, closed gates retired) in the same runtime. Weights are otherwise random: they change no time.
"""

import os
from collections.abc import Callable
from importlib.metadata import version

import torch
from record import arguments, write_result
from torch import Tensor, nn

from fheat import __version__, create_model, load, retire
from fheat.bench.timing import interleaved
from fheat.inference.runtimes import CompiledRuntime
from fheat.system.machine import machine

os.environ["FHEAT_CACHE"] = ""
SIZE = (112, 112, 80)
FIRST = "fheat_seg (la-4)"
PEERS = ("light_unetr", "segformer3d", "mednext", "segresnet", "dynunet")
RUNTIMES = ("torch", "torch.compile", "openvino")
LARGEST_ERROR = 1e-3
"""Largest difference of a compiled network from plain PyTorch, relative to its largest output."""


def main() -> None:
    options = arguments(__doc__, "equal-terms", rounds=5)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    networks: dict[str, nn.Module] = {FIRST: retire(load("la-4")).eval()}
    networks |= {name: create_model(name, patch_size=SIZE).eval() for name in PEERS}
    x = torch.randn(1, 1, *SIZE)
    with torch.no_grad():
        runs = {(name, how): compiled(network, how, x) for name, network in networks.items() for how in RUNTIMES}
        candidates = {f"{name} / {how}": (lambda run=run: run(x)) for (name, how), run in runs.items()}
        times = interleaved(candidates, options.rounds, "cpu", warm_up=1)
    window = {name: {how: round(times[f"{name} / {how}"], 1) for how in RUNTIMES} for name in networks}
    write_result(
        options.name,
        title="One window of FHEAT-Seg and its peers in the same runtimes, on two CPU threads",
        command="python benchmarks/equal_terms.py",
        seed=0,
        machine={**machine(), "openvino": version("openvino"), "fheat": __version__},
        settings={"window": SIZE, "rounds": options.rounds, "precision": "float32"},
        results={
            "window_ms": window,
            "ratio": {
                name: {how: round(row[how] / window[FIRST][how], 2) for how in RUNTIMES} for name, row in window.items()
            },
        },
        out=options.out,
    )


def compiled(network: nn.Module, how: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the network in a runtime, after it was compared with plain PyTorch."""
    run: Callable[[Tensor], Tensor] = network
    if how == "torch.compile":
        run = torch.compile(network, dynamic=False)
    elif how == "openvino":
        run = CompiledRuntime(network, "openvino")
    expected = network(x)
    error = float((run(x) - expected).abs().max() / expected.abs().max())
    if not error <= LARGEST_ERROR:
        raise RuntimeError(f"{how} is off by {error:.1g}")
    return run


if __name__ == "__main__":
    main()
