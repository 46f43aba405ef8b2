"""A network on a GPU: in half precision where that changes nothing, its launches captured once and replayed.

A forward pass of a small network is some three hundred short kernels; starting them one by one takes longer than they.
"""

import warnings
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fheat.system.capture import capture, rehearse

Precision = Literal["auto", "float32", "bfloat16"]
_ENOUGH = 1000
"""Voxels of foreground that windows must hold to be judged by."""
_MOST_CHANGED = 2e-3
"""Voxels that half precision may change, over those of the foreground."""
_Graph = tuple[torch.cuda.CUDAGraph, Tensor, Tensor]


class Replay:
    """Maps (B, C, *size) to (B, K, *size) on a GPU; the result is valid until the next call, from one thread at a time.

    `auto` is float32 until windows come that hold a thousand voxels of foreground. If all but 0.2 % of these keep their
    class in bfloat16, that is used from then on, else float32. float16 is not offered: its range is too small for the
    sums of an unnormalised network. With `regions` channels are judged one by one, as sigmoids, not against each other.

    Batches are filled up to a power of two, so that there are few graphs. A network that cannot be captured, because it
    asks the host, runs as it is.
    """

    def __init__(self, network: nn.Module, precision: Precision = "auto", *, regions: bool = False) -> None:
        self.network, self.regions = network, regions
        self.precision: Precision = checked_precision(precision)
        self._graphs: dict[torch.Size, _Graph | None] = {}

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Map a batch of windows."""
        if self.precision == "auto":
            self._judge(x)
        filled = torch.Size([1 << (len(x) - 1).bit_length(), *x.shape[1:]])
        if filled not in self._graphs:
            self._graphs[filled] = self._capture(x, filled)
        graph = self._graphs[filled]
        if graph is None:
            return self._run(x, self.precision)
        replay, given, found = graph
        given[: len(x)] = x
        replay.replay()
        return found[: len(x)]

    def _run(self, x: Tensor, precision: str) -> Tensor:
        half = precision == "bfloat16"
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            y: Tensor = self.network(x)
        return y

    def _judge(self, x: Tensor) -> None:
        keeps = self._keeps_classes(x)
        if keeps is not None:
            self.precision = "bfloat16" if keeps else "float32"
            self._graphs.clear()

    def _keeps_classes(self, x: Tensor) -> bool | None:
        """Whether half precision keeps the classes of these windows; None where they do not tell."""
        whole = self._classes(self._run(x, "float32"))
        foreground = int((whole > 0).sum())
        if foreground < _ENOUGH:
            return None
        half = self._run(x, "bfloat16")
        changed = int((self._classes(half) != whole).sum())
        return bool(half.isfinite().all()) and changed <= _MOST_CHANGED * foreground

    def _classes(self, logits: Tensor) -> Tensor:
        return logits > 0 if self.regions or logits.shape[1] == 1 else logits.argmax(dim=1)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _capture(self, x: Tensor, shape: torch.Size) -> _Graph | None:
        given = torch.zeros(shape, dtype=x.dtype, device=x.device)
        given[: len(x)] = x
        rehearse(lambda: self._run(given, self.precision), x.device)
        pool = next((one[0].pool() for one in self._graphs.values() if one is not None), None)
        try:
            graph, found = capture(lambda: self._run(given, self.precision), x.device, pool)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), "")
            warnings.warn(f"this network cannot be captured ({reason}): its launches are not replayed", stacklevel=3)
            return None
        return graph, given, found


def checked_precision(precision: Precision) -> Precision:
    """Return it, or raise a `ValueError` of one line."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision={precision!r} is unknown: use one of {', '.join(get_args(Precision))}")
    return precision
