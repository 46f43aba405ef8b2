"""How many windows a GPU has room for at a time, and how it says that it has none."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from fheat.inference.memory import activation_bytes

SHARE: Final = 0.8
"""Fraction of the free memory of a GPU that windows may take; the slab of the scan and the workspaces of libraries need
the rest."""


def graph_sizes(batch: int) -> list[int]:
    """Return the numbers of windows that graphs are captured for: a quarter of a batch, and a batch."""
    return sorted({max(batch // 4, 1), batch})


def fitting_batch(batch: int, window_bytes: int, free: int) -> int:
    """Return a batch, or its half, its quarter, ... with graphs that fit into `SHARE` of the free bytes; at least 1.

    All graphs are there at the same time at worst: while one is rehearsed, another one keeps its memory.

    >>> fitting_batch(16, 2**30, 80 * 2**30), fitting_batch(16, 2**30, 8 * 2**30)
    (16, 4)
    """
    while batch > 1 and sum(graph_sizes(batch)) * window_bytes > SHARE * free:
        batch //= 2
    return batch


def batch_on(device: torch.device, batch: int, shape: torch.Size, network: Callable[[Tensor], Tensor]) -> int:
    """Return how many windows of a shape, (C, X, Y, Z), the device has room for now, at most `batch`.

    One window is run to measure what it takes. On a CPU it is the batch, as memory is bounded before a scan starts.
    """
    if batch == 1 or device.type != "cuda":
        return batch
    _, window_bytes = activation_bytes(network, (1, *shape), device)
    return fitting_batch(batch, window_bytes, free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """Return the number of bytes that are free on a GPU, after what torch keeps without need is given back."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that was being handled when it was raised, says that a GPU has no memory left.

    Torch has a type for it, the libraries below it have not.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
            return True
        error = error.__context__
    return False


_NO_MEMORY: Final = ("out of memory", "status_alloc_failed")
