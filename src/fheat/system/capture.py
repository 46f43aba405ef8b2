"""Capture of CUDA graphs: what a function launches is recorded once and replayed, without the host's part."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def rehearse(run: Callable[[], object], device: torch.device | None = None) -> None:
    """Run once on a stream of its own, as a capture needs before it: kernels are built and chosen, memory is taken."""
    present = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        run()
    present.wait_stream(stream)


def capture(
    run: Callable[[], Result], device: torch.device | None = None, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record what `run` launches, without running it; every replay writes into the tensors of the returned result.

    Args:
        run: asks the host for nothing; was rehearsed.
        device: where it runs; the current one if None.
        pool: memory of an earlier graph to share, `graph.pool()`; the two are then replayed one after the other.

    Raises a `RuntimeError` where `run` waits for the host.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool):
            result = run()
    except BaseException:
        _end_failed_capture(device)
        raise
    return graph, result


def _end_failed_capture(device: torch.device | None) -> None:
    """Capture something small: a capture that fails leaves torch's random generator waiting for the end of one, and
    every random number on the device would raise an error from then on."""
    with torch.cuda.device(device):
        number = torch.zeros(1, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            number += 1
