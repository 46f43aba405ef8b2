"""Which scans each iteration sees, drawn once for a whole run."""

import torch
from torch import Tensor


def draw_order(scans: int, batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch) indices: permutations of the scans, one after the other, cut into batches.

    Every scan comes once before any comes again; a batch may span two permutations where their lengths do not divide.
    """
    if batch == 0:
        return torch.zeros(iterations, 0, dtype=torch.int64)
    rounds = -(-iterations * batch // scans)
    order = torch.cat([torch.randperm(scans, generator=generator) for _ in range(rounds)])
    return order[: iterations * batch].view(iterations, batch)


def draw_places(batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch, 3) numbers, uniform in [0, 1): where in the scans the crops lie."""
    return torch.rand(iterations, batch, 3, generator=generator)
