"""A network on a GPU: in half precision where that changes nothing, its launches captured once and replayed.

A forward pass of a small network is some three hundred short kernels; starting them one by one takes longer than they.
"""

import warnings
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Precision = Literal["auto", "float32", "bfloat16"]
_KEPT = 8
"""Batch sizes whose graphs are kept; scans of many sizes would otherwise fill the memory with them."""
_MOST_CHANGED = 1e-3
"""Share of the voxels whose class half precision may change, on the first windows."""
_Graph = tuple[torch.cuda.CUDAGraph, Tensor, Tensor]


class Replay:
    """Maps (B, C, *size) to (B, K, *size) on a GPU; the result is valid until the next call.

    `auto` is bfloat16 if the first windows that are not blank keep their classes in it, all but one voxel in a
    thousand, and else float32. float16 is not offered: its range is too small for the sums of an unnormalised network.
    A network that cannot be captured, because it asks the host, runs as it is.
    """

    def __init__(self, network: nn.Module, precision: Precision = "auto") -> None:
        if precision not in get_args(Precision):
            raise ValueError(f"precision={precision!r} is unknown: use one of {', '.join(get_args(Precision))}")
        self.network = network
        self.precision: Precision = precision
        self._graphs: dict[torch.Size, _Graph | None] = {}

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        if self.precision == "auto" and bool(x.amin() < x.amax()):
            self.precision = "bfloat16" if self._keeps_classes(x) else "float32"
            self._graphs.clear()
        if x.shape not in self._graphs:
            if len(self._graphs) == _KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[x.shape] = self._capture(x)
        graph = self._graphs[x.shape]
        if graph is None:
            return self._run(x, self.precision)
        replay, given, found = graph
        given.copy_(x)
        replay.replay()
        return found

    def _run(self, x: Tensor, precision: str) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            y: Tensor = self.network(x)
        return y

    def _keeps_classes(self, x: Tensor) -> bool:
        half, whole = self._run(x, "bfloat16"), self._run(x, "float32")
        first, second = ((y > 0) if y.shape[1] == 1 else y.argmax(dim=1) for y in (half, whole))
        return bool(half.isfinite().all()) and float((first != second).float().mean()) <= _MOST_CHANGED

    def _capture(self, x: Tensor) -> _Graph | None:
        given = x.clone()
        stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):  # kernels are built and chosen here, which a capture forbids
            self._run(given, self.precision)
        torch.cuda.current_stream(x.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(x.device), torch.cuda.graph(graph):
                found = self._run(given, self.precision)
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), "")
            warnings.warn(f"this network cannot be captured ({reason}): its launches are not replayed", stacklevel=3)
            return None
        return graph, given, found
