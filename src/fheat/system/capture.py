"""Capture of CUDA graphs: what a function launches is recorded once and replayed, without the host's part."""

from collections.abc import Callable
from functools import cache
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


def beside(run: Callable[[], Result], device: torch.device) -> Callable[[], Result]:
    """Run on a stream beside the current one, and return a function that waits for it there and returns the result.

    What is launched between the two calls overlaps with `run`, within a capture too, whose graph then has two branches.
    The returned function is called once, on the stream on which `beside` was called. On a CPU `run` just runs at once.

    Memory is safe without `record_stream`, which captures do not heed. What `run` reads it keeps referenced, and so
    does the returned function, until both streams are one again: the stream of its owner cannot reuse it before. What
    `run` allocates belongs to the side stream and is reused by this alone, whose next work comes after a fork, and thus
    after all that read the result.
    """
    if device.type != "cuda":
        done = run()
        return lambda: done
    present, side = torch.cuda.current_stream(device), _side(device)
    side.wait_stream(present)
    with torch.cuda.stream(side):
        result = run()
    kept = [run]

    def join() -> Result:
        torch.cuda.current_stream(device).wait_stream(side)
        kept.clear()
        return result

    return join


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream beside all others of a device: memory that was freed on it is only reused on it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
