"""The program of `fheat.bench.cohort`: segments a folder in a fresh process and measures device and memory meanwhile.

Its argument is the JSON of an `Order`, and it prints the JSON of a `Found`.
"""

import json
import sys
import time
from typing import Any, TypedDict

import numpy as np
import torch

from fheat.bench.stored import as_they_are
from fheat.inference.folder import predict_folder
from fheat.inference.memory import peak_bytes
from fheat.inference.predictor import Predictor
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Triple, Windows
from fheat.io import Volume
from fheat.models.card import Card
from fheat.models.folder import load
from fheat.system.allocator import return_large_blocks


class Order(TypedDict):
    """An order to this program: the model that it loads, the scans that it segments, and how."""

    model: str
    scans: str
    out: str
    count: int
    shape: list[int]
    device: str
    precision: str
    stride: list[int] | None
    overlap: bool


class Found(TypedDict):
    """The answer of this program: seconds of the whole and of the network, bytes, windows, and hashes of the masks."""

    wall: float
    busy: float
    peak: int
    bound: int
    windows: int
    masks: list[str]


class Meter:
    """Measures how long the network runs: on a CPU by the clock, on a GPU by events, which do not wait for it."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    def forward(self, window: SlidingWindow, x: torch.Tensor) -> torch.Tensor:
        """Run the network of a sliding window on a batch, and measure it."""
        if not self._cuda:
            begin = time.perf_counter()
            y = _FORWARD(window, x)
            self._seconds += time.perf_counter() - begin
            return y
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        y = _FORWARD(window, x)
        last.record()
        self._events.append((first, last))
        return y

    def seconds(self) -> float:
        """Return the seconds of all batches so far."""
        if self._events:
            torch.cuda.synchronize()
        return self._seconds + sum(float(first.elapsed_time(last)) / 1000 for first, last in self._events)


_FORWARD = SlidingWindow.forward


def main(order: Order) -> Found:
    """Segment the scans; loading the network and its first windows are not timed."""
    return_large_blocks()
    predictor = _predictor(order)
    _warm_up(predictor, order)
    meter = Meter(order["device"])
    SlidingWindow.forward = lambda self, x: meter.forward(self, x)  # type: ignore[method-assign]
    begin = time.perf_counter()
    record = predict_folder(predictor, order["scans"], order["out"], overlap=order["overlap"])
    wall = time.perf_counter() - begin
    return Found(
        wall=wall,
        busy=meter.seconds(),
        peak=peak_bytes(),
        bound=max(scan.memory_bound_bytes for scan in record.cases),
        windows=sum(scan.windows for scan in record.cases),
        masks=[scan.mask_sha256 for scan in record.cases],
    )


def _predictor(order: Order) -> Predictor:
    """Return a predictor that segments scans on their own grid. On a CPU torch runs the network, because its batches
    can be measured one by one."""
    network = load(order["model"])
    own = getattr(network, "card", None)
    card = Card(preprocessing=as_they_are(), window=own.window if isinstance(own, Card) else None)
    runtime: Any = "auto" if order["device"].startswith("cuda") else "torch"
    precision: Any = order["precision"]
    predictor = Predictor(network, card=card, device=order["device"], runtime=runtime, precision=precision)
    if order["stride"] is not None:
        x, y, z = order["stride"]
        predictor.windows = Windows(predictor.windows.size, (x, y, z))
    return predictor


def _warm_up(predictor: Predictor, order: Order) -> None:
    """Run a few windows of noise and say that the whole cohort comes: kernels and graphs, which the predictor builds
    for so many windows, are there before the clock starts."""
    windows = predictor.windows
    x, y, z = (length + step for length, step in zip(windows.size, windows.stride, strict=True))
    noise = np.random.default_rng(0).normal(size=(x, y, z)).astype(np.float32)
    scan = Volume(noise, np.eye(4))
    predictor.memory(scan)  # before all else, as what the network loads now is part of the bound
    a, b, c = order["shape"]
    grid: Triple = (a, b, c)
    cohort = -(-order["count"] * windows.count(grid) // windows.count((x, y, z)))  # as a number of scans like this one
    predictor.run_windows(scan, predictor.scan(scan), to_come=cohort - 1)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
