"""Amounts of work: voxels of windows, and multiply-adds of a network for each, which one pass over a small window tells
without a profiler and with hardly any memory."""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SIDES: Final = (32, 64)
"""Lengths of the small window, in voxels, that are tried in turn: some networks do not run on the smaller one."""
_LAST_AXIS: Final = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Products of matrices, each with the place of its left factor among the arguments, whose last axis is summed over."""


class WindowVoxels:
    """Counts the voxels of windows that a runtime has mapped and those that are known to come."""

    def __init__(self) -> None:
        self._done = self._to_come = 0

    @property
    def total(self) -> int:
        """The sum of the voxels that are done and those that are known to come."""
        return self._done + self._to_come

    def expect(self, voxels: int) -> None:
        """Take note of how many voxels come next, in place of what was said."""
        self._to_come = voxels

    def take(self, x: Tensor) -> Tensor:
        """Count a batch of windows, (B, C, X, Y, Z), as done, and return it for the runtime to map."""
        voxels = x.numel() // x.shape[1]
        self._done, self._to_come = self._done + voxels, max(self._to_come - voxels, 0)
        return x


@torch.inference_mode(False)  # under which composite operators are not taken apart
@torch.no_grad()
def macs_per_voxel(network: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """Return about how many multiply-adds a network does for each voxel of a window (C, *size), on the CPU.

    Counted are convolutions and products of matrices, on a window of the first of `_SIDES` that the network takes. What
    grows faster than the window, such as attention, is underestimated. The result is 0 where the network takes none.
    """
    for side in _SIDES:
        small = [min(length, side) for length in shape[1:]]
        counter = _Counter()
        try:
            with counter:
                network(torch.zeros(1, shape[0], *small))
        except Exception:  # a network of another package may raise anything for a size that is not its own
            continue
        return counter.macs / prod(small)
    return 0.0


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the multiply-adds of convolutions and of products of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Let torch leave its compiler alone, as in `fheat.inference.memory`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if name in ("convolution", "_convolution"):
            x, weight, transposed = args[0], args[1], args[6]
            self.macs += (x if transposed else out).numel() * prod(weight.shape[1:])
        elif name in _LAST_AXIS:
            self.macs += out.numel() * args[_LAST_AXIS[name]].shape[-1]
        elif name.startswith("_scaled_dot_product"):
            query, key = args[0], args[1]
            self.macs += 2 * query.numel() * key.shape[-2]
        return out
