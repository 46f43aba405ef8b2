"""A network on a GPU: in half precision where that changes nothing, its launches captured once and replayed.

A forward pass of a small network is some three hundred short kernels; starting them one by one takes longer than
running them.
"""

import warnings
from typing import Final, Literal, get_args

import torch
from torch import Tensor, nn

from fheat.ops import kernels
from fheat.system.capture import capture, rehearse

Precision = Literal["auto", "float32", "bfloat16"]
LEAST_FOREGROUND: Final = 1000
"""Number of foreground voxels that windows must hold before half precision is judged by them."""
LARGEST_CHANGED_SHARE: Final = 2e-3
"""Number of voxels whose class half precision may change, over the number of foreground voxels."""
_Graph = tuple[torch.cuda.CUDAGraph, Tensor, Tensor]
"""A captured forward pass, the tensor it reads and the tensor it writes."""


class Replay:
    """A network as captured CUDA graphs, for use from one thread at a time; see `fheat.inference.runtimes.Runtime`.

    Precision `auto` is plain float32, without fused kernels or a graph, until windows come that hold a thousand voxels
    of foreground. If all but 0.2 % of these keep their class in bfloat16, that is used from then on, else float32. So
    only the kernels of one precision have to be built. float16 is not offered: its range is too small for the sums of
    an unnormalised network. With `regions` channels are judged one by one, as sigmoids, not against each other. Where
    the channels hold several predictions (`groups`), the first of them is judged.

    Batches are filled up to a power of two, so that there are few graphs. A network that cannot be captured, because it
    asks the host, runs as it is.
    """

    name = "torch"
    each = None

    def __init__(
        self, network: nn.Module, precision: Precision = "auto", *, regions: bool = False, groups: int = 1
    ) -> None:
        self.network, self.regions, self.groups = network, regions, groups
        self._precision: Precision = checked_precision(precision)
        self._graphs: dict[torch.Size, _Graph | None] = {}

    @property
    def precision(self) -> str:
        """Precision of the next window; `auto` where no window has decided it yet."""
        return self._precision

    def expect(self, voxels: int, shape: tuple[int, ...]) -> None:
        """Ignore the number: a graph is captured for the first batch and pays from the second."""

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Do nothing: a graph belongs to a number of windows, which the first batch brings."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        if self._precision == "auto":
            whole = self._plain(x)
            keeps = self._keeps_classes(x, whole)
            if keeps is None:
                return whole
            self._precision = "bfloat16" if keeps else "float32"
        filled = torch.Size([1 << (len(x) - 1).bit_length(), *x.shape[1:]])
        if filled not in self._graphs:
            self._graphs[filled] = self._capture(x, filled)
        captured = self._graphs[filled]
        if captured is None:
            return self._run(x, self._precision)
        graph, source, result = captured
        source[: len(x)] = x
        graph.replay()
        return result[: len(x)]

    def _run(self, x: Tensor, precision: str) -> Tensor:
        half = precision == "bfloat16"
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            y: Tensor = self.network(x)
        return y

    def _plain(self, x: Tensor) -> Tensor:
        with kernels.use("never"):
            return self._run(x, "float32")

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
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), "")
            warnings.warn(f"this network cannot be captured ({reason}): its launches are not replayed", stacklevel=3)
            return None
        return graph, source, result


def checked_precision(precision: Precision) -> Precision:
    """Return the precision, or raise a `ValueError` of one line where there is none of that name."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision={precision!r} is unknown: use one of {', '.join(get_args(Precision))}")
    return precision
