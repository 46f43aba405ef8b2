"""A memory of the best vectors of each class, alike in all processes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.system import processes


class ClassMemory(nn.Module):
    """Holds up to `entries` vectors for each class; shapes do not depend on how many there are.

    vectors (classes, entries, channels): the vectors, 0 where there is none.
    filled (classes, entries): bool, whether an entry holds a vector of the class.
    """

    vectors: Tensor
    filled: Tensor

    def __init__(self, classes: int, entries: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(classes, entries, channels))
        self.register_buffer("filled", torch.zeros(classes, entries, dtype=torch.bool))

    @torch.no_grad()
    def replace(self, place: int, vectors: Tensor, scores: Tensor, candidates: Tensor) -> None:
        """Hold those candidates with the highest scores, of all processes together; without any, hold what was held.

        Shapes: vectors (N, channels), scores (N,), candidates (N,) bool.
        """
        group, entries = processes.current(), self.filled.shape[1]
        missing = max(0, entries - len(vectors))
        ranks = F.pad(scores.masked_fill(~candidates, -torch.inf), (0, missing), value=-torch.inf)
        best, at = ranks.topk(entries)
        best, found = group.gather(best), group.gather(F.pad(vectors, (0, 0, 0, missing))[at])
        best, at = best.topk(entries)
        filled = best > -torch.inf
        some = filled.any()
        new = torch.where(filled[:, None], found[at], 0.0)
        self.vectors[place].copy_(torch.where(some, new, self.vectors[place]))
        self.filled[place].copy_(torch.where(some, filled, self.filled[place]))
