"""Stochastic depth: the heat operator, left out at random in training and always present afterwards."""

from typing import Any

import torch
from torch import Tensor

from fheat.ops.heat import FractionalHeat
from fheat.ops.parameterisation import checked_number


class StochasticDepthHeat(FractionalHeat):
    """The heat operator T as a branch that each sample skips with a probability p in training.

        y = v + b (T(v) - v) / (1 - p),    b = 0 with probability p, else 1;     at evaluation y = T(v)

    This is G. Huang et al., *Deep Networks with Stochastic Depth*, ECCV 2016, with a draw for every sample and the
    scale in training instead of evaluation. The strength of T is `softplus`, which never closes.

    Shapes: those of `FractionalHeat`. Identity case: a sample that skips the branch leaves it bit for bit. At
    evaluation every branch is present, so **such a site is never off and never retires**.

    Args:
        drop: the probability p, at least 0 and below 1.
        heat: `alpha`, `initial_theta`, `initial_strength`, `size`, `dims` or `transform` of `FractionalHeat`.
    """

    def __init__(self, *, drop: float = 0.2, **heat: Any) -> None:
        super().__init__(strength="softplus", **heat)
        self.drop = checked_number("drop", drop, low=0.0)
        if self.drop >= 1:
            raise ValueError(f"drop={drop!r} would leave out every branch: use a number below 1")

    @property
    def one_response(self) -> bool:
        """Whether all samples pass through the same operator: not in training, where some skip it."""
        return not self.training

    def forward(self, x: Tensor) -> Tensor:
        """Apply the gate to (N, C, *grid), where each sample is drawn for itself, or to (C, *grid)."""
        y = super().forward(x)
        if not self.training or self.retired:
            return y
        shape = (x.shape[0] if x.ndim == self.dims + 2 else 1, *[1] * (x.ndim - 1))
        kept = torch.rand(shape, device=x.device) >= self.drop
        return torch.where(kept, x + (y - x) / (1 - self.drop), x)
