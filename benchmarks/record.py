"""How a result is measured, and what it says about where."""

import argparse
import platform
import random
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch


def arguments(description: str | None, name: str, *, rounds: int, data: str | None = None) -> argparse.Namespace:
    """Read --device, --rounds and --out; the result file is benchmarks/results/NAME-DEVICE.json if not given.

    With `data`, what the folder holds, also --data.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, help=f"result file (default: benchmarks/results/{name}-DEVICE.json)")
    if data is not None:
        parser.add_argument("--data", type=Path, help=data)
    options = parser.parse_args()
    options.out = options.out or Path(__file__).parent / "results" / f"{name}-{options.device}.json"
    return options


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """Return a replay of `run` as a CUDA graph: what the device does, without the launches of eager mode."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Return the median milliseconds of each candidate, measured in turns; on a GPU as captured graphs."""
    if device == "cuda":
        candidates = {name: captured(run) for name, run in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = random.Random(0)
    for turn in range(rounds + 2):
        # A fixed order would always hand one candidate the caches its neighbour left.
        for name, run in order.sample(list(candidates.items()), len(candidates)):
            repeats = 20 if device == "cuda" else 1  # a synchronisation costs as much as a small replay
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start) / repeats)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def machine(device: str = "cpu") -> dict[str, object]:
    """Return processor or GPU name, thread count and versions, for the `machine` field of a result file."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return {
        "device": device,
        "name": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scipy": version("scipy"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
