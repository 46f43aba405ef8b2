"""A network on a GPU in half precision, its launches captured once per batch size and replayed.

A forward pass of a small network is some three hundred short kernels; starting them one by one takes longer than they.
"""

import torch
from torch import Tensor, nn

_KEPT = 8
"""Batch sizes whose graphs are kept; scans of many sizes would otherwise fill the memory with them."""


class Replay:
    """Maps (B, C, *size) to (B, K, *size) under autocast; the result is valid until the next call.

    The network must be in evaluation mode and must not ask the host. Identity case: `precision` float32 and no
    capture is the network itself.
    """

    def __init__(self, network: nn.Module, precision: torch.dtype) -> None:
        self.network, self.precision = network, precision
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network."""
        if x.shape not in self._graphs:
            if len(self._graphs) == _KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[x.shape] = self._capture(x)
        graph, given, found = self._graphs[x.shape]
        given.copy_(x)
        graph.replay()
        return found

    def eager(self, x: Tensor) -> Tensor:
        """Run the network without a graph."""
        with torch.no_grad(), torch.autocast(x.device.type, self.precision, enabled=self.precision != torch.float32):
            y: Tensor = self.network(x)
        return y

    def _capture(self, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        given = x.clone()
        stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):  # kernels are built and chosen here, which a capture forbids
            self.eager(given)
        torch.cuda.current_stream(x.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self.eager(given)
        return graph, given, found
