"""The largest component of each mask of a batch, as tensor operations that a captured graph can hold."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fheat.ops import kernels

ROUNDS = 10
"""Number of rounds. Each round joins every part with its largest neighbour and flattens the tree of parts four levels
deep, so the number of parts falls at least by half and usually by far more; masks of a million voxels need four to six
rounds."""
_JUMPS = 4
"""Number of times per round that each part takes over the parent of its parent."""


def largest_component(masks: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Keep the largest 26-connected component of each mask, (B, X, Y, Z) bool; an empty mask stays empty.

    Of components of equal size the one with the lowest number stays. A mask has fewer than 2^24 voxels, because they
    are numbered in float32, which pooling needs.
    """
    batch, count = len(masks), masks[0].numel()
    if count >= 2**24:
        raise ValueError(f"masks have {count:,} voxels: at most {2**24 - 1:,} can be numbered")
    if kernels.usable(masks):
        from fheat.ops.kernels.largest_component import largest_component as fused  # Triton takes a second to import

        with kernels.on_device(masks):
            return fused(masks, rounds)
    inside = masks[:, None].float()
    numbers = torch.arange(count + 1, dtype=torch.float32, device=masks.device).expand(batch, -1)
    roots = numbers[:, 1:].view_as(inside) * inside
    for _ in range(rounds):
        best = F.max_pool3d(roots, 3, stride=1, padding=1) * inside
        parents = numbers.scatter_reduce(1, roots.flatten(1).long(), best.flatten(1), "amax")
        for _ in range(_JUMPS):
            parents = parents.gather(1, parents.long())
        roots = parents.gather(1, roots.flatten(1).long()).view_as(inside)
    own = roots.flatten(1).long()
    sizes = torch.zeros_like(numbers).scatter_add_(1, own, inside.flatten(1))
    return (own == sizes.argmax(dim=1, keepdim=True)).view_as(masks) & masks
