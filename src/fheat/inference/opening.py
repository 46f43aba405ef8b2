"""Opening what OpenVINO compiled, and its first windows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fheat.system.imports import openvino_core


class Plan(NamedTuple):
    """Shape and number of windows, precision and threads that a network is compiled for."""

    shape: tuple[int, ...]
    """Shape of one window, (C, X, Y, Z)."""
    precision: str
    batch: int
    """Number of windows that come together."""
    threads: int


def openvino_options(plan: Plan) -> dict[str, Any]:
    """Return what OpenVINO is told when it compiles a network, and again when it opens it."""
    return {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[plan.precision],
        "INFERENCE_NUM_THREADS": plan.threads,
        "NUM_STREAMS": min(plan.batch, plan.threads),
    }


def opened_requests(content: bytes, plan: Plan) -> list[Any]:
    """Return what runs windows of a network that OpenVINO compiled: `min(plan.batch, plan.threads)` of them at a time.

    There is one request more, for a window that waits, so that no thread does.
    """
    compiled = openvino_core().import_model(content, "CPU", openvino_options(plan))
    ahead = 1
    return [compiled.create_infer_request() for _ in range(min(plan.batch, plan.threads) + ahead)]


def run_first_windows(requests: Sequence[Any]) -> None:
    """Run a window of zeros in each request: with the first one OpenVINO takes the memory that it keeps."""
    for request in requests:
        request.get_input_tensor(0).data[...] = 0
        request.start_async()
    for request in requests:
        request.wait()
