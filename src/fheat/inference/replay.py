"""A network on a GPU: as it is for a few windows, and for many by fused kernels, in half precision where that changes
nothing, its launches captured once and replayed.

A forward pass of a small network is some three hundred short kernels; starting them one by one takes longer than
running them. Building the fused ones takes longer than a few scans.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from math import prod
from threading import RLock
from typing import Final, Literal, get_args

import torch
from torch import Tensor, nn

from fheat.inference.device_memory import batch_on, graph_sizes, is_out_of_memory
from fheat.inference.work import WindowVoxels
from fheat.ops import kernels
from fheat.system.capture import capture, rehearse
from fheat.system.errors import first_line

Precision = Literal["auto", "float32", "bfloat16"]
LEAST_FOREGROUND: Final = 1000
"""Number of foreground voxels that windows must hold before half precision is judged by them."""
LARGEST_CHANGED_SHARE: Final = 2e-3
"""Number of voxels whose class half precision may change, over the number of foreground voxels."""
VOXELS_WORTH_KERNELS: Final = 1_000_000_000
"""Number of window voxels from which on fused kernels and a graph are used: about eighteen LA scans with dense windows.
On an NVIDIA H200 they save 1.5 ms with every window of a million voxels, take 3 s until they run where an earlier
process has built them, and 30 s where none has."""
VOXELS_WORTH_A_GRAPH: Final = 1_000_000_000
"""Number of voxels that fill up a graph for nothing before a smaller one, which takes 4 s to capture on an NVIDIA H200,
is captured."""
_KERNEL_BYTES: Final = 512 * 2**20
"""Bytes of this machine's memory that building kernels and capturing graphs may take. Without them FHEAT-Seg took
272 MB more than its bound on an NVIDIA H200 (`benchmarks/results/cohort-cuda.json`), which has slack of its own."""
_ROUNDING = RLock()
_Graph = tuple[torch.cuda.CUDAGraph, Tensor, Tensor]
"""A captured forward pass, the tensor it reads and the tensor it writes."""


class Replay:
    """A network as captured CUDA graphs, for use from one thread at a time; see `fheat.inference.runtimes.Runtime`.

    Until `VOXELS_WORTH_KERNELS` are done or known to come, the network runs without fused kernels and without a graph,
    in float32 unless bfloat16 is asked for. From then on precision `auto` waits for windows that hold a thousand voxels
    of foreground. If all but 0.2 % of these keep their class in bfloat16, that is used, else float32. So only the
    kernels of one precision have to be built. float16 is not offered: its range is too small for the sums of
    an unnormalised network. With `regions` channels are judged one by one, as sigmoids, not against each other. Where
    the channels hold several predictions (`groups`), the first of them is judged.

    There are graphs of two sizes, for `batch` windows and for a quarter of them, and batches are filled up to one of
    these: each graph takes seconds to capture, with the kernels that are built for its size. So what is left of a scan
    fills up a graph that is there already, until `VOXELS_WORTH_A_GRAPH` were filled up; then the small one is captured.
    A network that cannot be captured, because it asks the host, runs as it is.

    Where the GPU has no room for so many windows, see `fheat.inference.device_memory`, there are fewer at a time. If
    its memory runs out all the same, a quarter of them run from then on, after one warning.
    """

    name = "torch"
    each = None

    def __init__(
        self,
        network: nn.Module,
        precision: Precision = "auto",
        *,
        batch: int = 1,
        regions: bool = False,
        groups: int = 1,
    ) -> None:
        self.network, self.regions, self.groups = network, regions, groups
        self._batch = batch
        self._batches: dict[torch.Size, int] = {}
        self._precision: Precision = checked_precision(precision)
        self._graphs: dict[torch.Size, _Graph | None] = {}
        self._voxels = WindowVoxels()
        self._filled_up = 0
        """Number of voxels of windows that nobody wanted, which filled up a graph larger than the smallest."""

    @property
    def precision(self) -> str:
        """Precision of the next window; `auto` where there are many and none has decided it yet."""
        return self._precision if self._is_much() else self._first_precision

    @property
    def kernel_bytes(self) -> int:
        """Bytes of this machine's memory that building kernels and graphs may take."""
        return _KERNEL_BYTES if self._is_much() else 0

    @property
    def _first_precision(self) -> str:
        return "bfloat16" if self._precision == "bfloat16" else "float32"

    def _is_much(self) -> bool:
        """Return whether kernels and a graph pay: for as many windows as are done and to come, or because they were
        built already."""
        return bool(self._graphs) or self._voxels.total >= VOXELS_WORTH_KERNELS

    def expect(self, voxels: int, shape: tuple[int, ...]) -> None:
        """Take note of how many voxels of windows come next, which decides whether kernels and a graph pay."""
        self._voxels.expect(voxels)

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Do nothing: a graph belongs to a number of windows, which the first batch brings."""

    def rehearse(self, x: Tensor) -> Tensor:
        """Map the batch: its kernels say what memory they take by taking it."""
        return self(x)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        self._voxels.take(x)
        if x.shape[1:] not in self._batches:
            plain = partial(self._plain, precision=self._first_precision)
            self._batches[x.shape[1:]] = batch_on(x.device, self._batch, x.shape[1:], plain)
        while True:
            most = self._batches[x.shape[1:]]
            try:
                if len(x) <= most:
                    return self._mapped(x)
                return torch.cat([self._mapped(part).clone() for part in torch.split(x, most)])
            except RuntimeError as error:
                if most == 1 or not is_out_of_memory(error):
                    raise
            self._shrink(x.shape[1:])  # here, as the error keeps tensors

    def _shrink(self, shape: torch.Size) -> None:
        """Let a quarter of the windows of a shape, (C, X, Y, Z), run at a time from now on.

        All graphs go, as they share their memory, which is free again only after the last of them.
        """
        most = self._batches[shape]
        fewer = self._batches[shape] = max(most // 4, 1)
        self._graphs = {size: None for size, graph in self._graphs.items() if graph is None}
        torch.cuda.empty_cache()
        warnings.warn(f"the GPU has no memory for {most} windows at a time: from now on {fewer} run", stacklevel=3)

    def _mapped(self, x: Tensor) -> Tensor:
        """Map a batch of windows that the device has room for."""
        if not self._is_much():
            return self._plain(x, self._first_precision)
        if self._precision == "auto":
            whole = self._plain(x, "float32")
            keeps = self._keeps_classes(x, whole)
            if keeps is None:
                return whole
            self._precision = "bfloat16" if keeps else "float32"
        filled = self._filled(x)
        if filled not in self._graphs:
            self._graphs[filled] = self._capture(x, filled)
        captured = self._graphs[filled]
        if captured is None:
            return self._run(x, self._precision)
        graph, source, result = captured
        source[: len(x)] = x
        graph.replay()
        return result[: len(x)]

    def _filled(self, x: Tensor) -> torch.Size:
        """Return the shape of the graph for a batch: the smallest captured one that holds it, else the smallest; that
        one, too, where larger ones were filled up for long."""
        sizes = graph_sizes(self._batches[x.shape[1:]])
        smallest, *larger = [torch.Size([size, *x.shape[1:]]) for size in sizes if len(x) <= size]
        there = None if smallest in self._graphs else next((shape for shape in larger if shape in self._graphs), None)
        if there is None:
            return smallest
        self._filled_up += (there[0] - len(x)) * prod(x.shape[2:])
        return smallest if self._filled_up >= VOXELS_WORTH_A_GRAPH else there

    def _run(self, x: Tensor, precision: str) -> Tensor:
        half = precision == "bfloat16"
        exactly = nullcontext() if half or not x.is_cuda else unrounded_convolutions()
        with exactly, torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            y: Tensor = self.network(x)
        return y

    def _plain(self, x: Tensor, precision: str) -> Tensor:
        with kernels.use("never"):
            return self._run(x, precision)

    def _keeps_classes(self, x: Tensor, whole: Tensor) -> bool | None:
        """Return whether half precision keeps the classes of logits `whole`, or None where they hold too little."""
        classes = self._classes(whole)
        foreground = int((classes > 0).sum())
        if foreground < LEAST_FOREGROUND:
            return None
        half = self._run(x, "bfloat16")
        changed = int((self._classes(half) != classes).sum())
        return bool(half.isfinite().all()) and changed <= LARGEST_CHANGED_SHARE * foreground

    def _classes(self, logits: Tensor) -> Tensor:
        logits = logits[:, : logits.shape[1] // self.groups]
        return logits > 0 if self.regions or logits.shape[1] == 1 else logits.argmax(dim=1)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _capture(self, x: Tensor, shape: torch.Size) -> _Graph | None:
        source = torch.zeros(shape, dtype=x.dtype, device=x.device)
        source[: len(x)] = x
        rehearse(lambda: self._run(source, self._precision), x.device)
        pool = next((one[0].pool() for one in self._graphs.values() if one is not None), None)
        try:
            graph, result = capture(lambda: self._run(source, self._precision), x.device, pool)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = first_line(error)
            warnings.warn(f"this network cannot be captured ({reason}): its launches are not replayed", stacklevel=3)
            return None
        return graph, source, result


@contextmanager
def unrounded_convolutions() -> Iterator[None]:
    """Keep cuDNN from rounding the operands of float32 convolutions to TF32, as torch lets it; for the whole process,
    so that one thread at a time is in the block."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    with _ROUNDING:
        before = convolutions.fp32_precision
        convolutions.fp32_precision = "ieee"
        try:
            yield
        finally:
            convolutions.fp32_precision = before


def checked_precision(precision: Precision) -> Precision:
    """Return the precision, or raise a `ValueError` of one line where there is none of that name."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision={precision!r} is unknown: use one of {', '.join(get_args(Precision))}")
    return precision
