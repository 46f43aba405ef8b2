"""How much of an attention map lies inside the target."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Concentration:
    """`share` of the attention inside the target, and `chance`, the share of the voxels: what even attention has."""

    share: float
    chance: float

    @property
    def over_chance(self) -> float | None:
        """Share divided by chance: 1 for even attention; None where there is no target."""
        return self.share / self.chance if self.chance else None


def concentration(attention: Tensor, target: Tensor) -> Concentration:
    """Return sum of a_v over the target / sum of a_v over all voxels, and the same for even attention.

        share = sum_{v in target} a_v / sum_v a_v,    chance = |target| / |all voxels|

    Shapes: both the same, any. Attention is not negative and not zero everywhere; the target is boolean. Even attention
    has share = chance, whatever its scale.
    """
    if attention.shape != target.shape:
        raise ValueError(f"attention {tuple(attention.shape)} and target {tuple(target.shape)} differ in shape")
    if target.dtype != torch.bool:
        raise TypeError(f"target has dtype {target.dtype}: give a mask, such as label > 0")
    values = attention.detach().double()
    if not torch.isfinite(values).all() or bool((values < 0).any()) or not bool((values > 0).any()):
        raise ValueError("attention must be finite, nowhere negative and somewhere positive")
    return Concentration(float(values[target].sum() / values.sum()), float(target.double().mean()))
