"""A memory of feature vectors by class, and the choice of the voxels that enter it. All shapes are fixed.

Processes that train together choose among the voxels of all of them, and their memories are alike.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fheat.system import processes

_OUT = -1.0
"""Score of what cannot be chosen; scores are at least 0."""


class Choice(NamedTuple):
    """Voxels of this process that were chosen for each class.

    places (K, n): numbers of the voxels; kept (K, n): bool, whether the voxel was chosen or only fills the shape.
    """

    places: Tensor
    kept: Tensor


def class_scores(scores: Tensor, labels: Tensor, eligible: Tensor, classes: int) -> Tensor:
    """Return (K, V): the score of each voxel in the row of its class where it is eligible, else a score below all.

    Shapes: scores at least 0, labels, and eligible bool, each (V,).
    """
    own = labels == torch.arange(classes, device=labels.device)[:, None]
    return torch.where(own & eligible, scores, _OUT)


def choose(scores: Tensor, count: int) -> Choice:
    """Choose the voxels with the highest scores, at most `count` per class over all processes together.

    `scores` (K, V) is that of `class_scores`. n is the smaller one of `count` and V.
    """
    group = processes.current()
    best, places = scores.topk(min(count, scores.shape[1]))
    whole = group.gather(best.T.contiguous())  # (size n, K)
    highest = whole.topk(min(count, len(whole)), dim=0)
    chosen = torch.zeros_like(whole, dtype=torch.bool).scatter(0, highest.indices, highest.values >= 0)
    return Choice(places, group.rows(chosen).T)


class RingMemory(nn.Module):
    """The last `capacity` vectors of each class, in rings: the oldest one is overwritten first.

    Buffers: vectors (K, capacity, C); written (K,), how many vectors were ever written.
    """

    vectors: Tensor
    written: Tensor

    def __init__(self, classes: int, capacity: int, channels: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.register_buffer("vectors", torch.zeros(classes, capacity, channels))
        self.register_buffer("written", torch.zeros(classes, dtype=torch.int64))

    @torch.no_grad()
    def write(self, vectors: Tensor, kept: Tensor) -> None:
        """Write the vectors (K, n, C) that are kept (K, n), n at most the capacity, those of all processes."""
        group, count = processes.current(), kept.shape[1]
        whole = group.gather(vectors.transpose(0, 1).contiguous()).transpose(0, 1)
        chosen = group.gather(kept.T.to(torch.uint8).contiguous()).T > 0
        order = chosen.int().argsort(dim=1, descending=True, stable=True)[:, : min(count * group.size, self.capacity)]
        whole, chosen = whole.gather(1, _for_all(order, whole)), chosen.gather(1, order)
        places = (self.written[:, None] + torch.arange(order.shape[1], device=order.device)) % self.capacity
        places = _for_all(places, whole)
        new = torch.where(chosen[:, :, None], whole.to(self.vectors.dtype), self.vectors.gather(1, places))
        self.vectors.scatter_(1, places, new)
        self.written += chosen.sum(dim=1)

    @torch.no_grad()
    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """Return `count` different vectors of each class at random, (K, count, C), and whether it has as many, (K,).

        All processes draw the same. `count` is at most the capacity.
        """
        filled = torch.arange(self.capacity, device=self.written.device) < self.written[:, None]
        chance = torch.rand(filled.shape, device=filled.device)
        places = torch.where(filled, chance, _OUT).topk(count).indices
        return self.vectors.gather(1, _for_all(places, self.vectors)), self.written >= count


def _for_all(places: Tensor, vectors: Tensor) -> Tensor:
    """Repeat places (K, n) for every channel of vectors (K, ..., C)."""
    return places[:, :, None].expand(-1, -1, vectors.shape[2])
