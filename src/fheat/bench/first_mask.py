"""The program of `fheat.bench.start`: segments a scan in a fresh process and prints how long each part took.

It imports nothing before its clock runs. Its argument is the JSON of an `Order`, and it prints the JSON of a `Split`.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypedDict


class Order(TypedDict):
    """An order to this program: the model that it loads, the scan that it segments, and how."""

    model: str
    scan: str
    mask: str
    device: str
    precision: str
    runtime: str
    stride: list[int] | None


class Split(TypedDict):
    """The answer of this program: the seconds of each part, in the order in which they happen, and the windows of the
    scan."""

    parts: dict[str, float]
    windows: int
    window: list[int]
    stride: list[int]


SECOND_SCAN = "second scan"
"""Name of the last part, in which a process that has everything ready segments the same scan again. It is no part of
the start: it is what the scan itself takes."""


def main(order: Order) -> Split:
    """Segment the scan twice and return the seconds of each part.

    As in the command, scans are parsed and what was compiled is opened by a process and a thread that begin first and
    go on beside the imports. The part `model` ends when the thread does.
    """
    parts: dict[str, float] = {}
    start = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal start
        now = time.perf_counter()
        parts[name], start = now - start, now

    from fheat.inference.ahead import begun_ahead

    with begun_ahead(order["model"]):
        lap("begin ahead")
        return _timed(order, parts, lap)


def _timed(order: Order, parts: dict[str, float], lap: Callable[[str], None]) -> Split:
    """Import, load and segment, with a lap behind each part."""
    import_module("torch")
    lap("import torch")
    from fheat.inference.predictor import Predictor
    from fheat.inference.windows import Windows

    lap("import fheat")
    options: dict[str, Any] = {name: order[name] for name in ("device", "precision", "runtime")}
    predictor = Predictor(order["model"], **options)
    if order["stride"] is not None:
        x, y, z = order["stride"]
        predictor.windows = Windows(predictor.windows.size, (x, y, z))
    lap("model")
    if order["runtime"] == "openvino":
        predictor._run.prepare((1, *predictor.windows.size))
        lap("compile or open")
    for name in ("first scan", SECOND_SCAN):
        mask = predictor.segment(order["scan"], check=False)
        mask.save(order["mask"])
        lap(name)
    size, stride = predictor.windows.size, predictor.windows.stride
    x, y, z = mask.data.shape
    return Split(parts=parts, windows=predictor.windows.count((x, y, z)), window=list(size), stride=list(stride))


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
