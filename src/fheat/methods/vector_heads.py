"""Heads on feature vectors: linear, batch norm, ReLU, linear, where only some of the vectors count."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.system import processes


class CountedNorm(nn.BatchNorm1d):
    """Batch norm whose statistics are those of the vectors that count.

    With all counted it is `nn.BatchNorm1d`. Without `counted`, the running statistics are used and stay as they are.
    As in every batch norm, each process normalises by its own vectors; the running statistics are those of all.
    """

    def forward(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Normalise vectors (V, C); `counted` (V,) is true for those that make the statistics."""
        if counted is None or not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        weight = counted.to(x.dtype)[:, None]
        mean, variance, _ = _statistics(x, weight, processes.ALONE)
        self._remember(x, weight)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias

    @torch.no_grad()
    def _remember(self, x: Tensor, weight: Tensor) -> None:
        """Move the running statistics, the variance without bias; not where fewer than two vectors count."""
        mean, variance, number = _statistics(x, weight, processes.current())
        share = (self.momentum or 0.0) * (number > 1).to(x.dtype)
        for running, new in (
            (self.running_mean, mean),
            (self.running_var, variance * number / (number - 1).clamp(min=1)),
        ):
            assert running is not None
            running.lerp_(new, share)


def _statistics(x: Tensor, weight: Tensor, group: processes.Group) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of vectors (V, C) with weights (V, 1), each (C,), and the sum of the weights."""
    number = group.sum(weight.sum()).clamp(min=1)
    mean = group.sum((weight * x).sum(dim=0)) / number
    return mean, group.sum((weight * (x - mean).square()).sum(dim=0)) / number, number


class VectorHead(nn.Module):
    """W2 relu(norm(W1 x + b1)) + b2 of vectors, (V, C_in) to (V, C_out), with C_out channels inside."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.widen = nn.Linear(in_channels, out_channels)
        self.norm = CountedNorm(out_channels)
        self.project = nn.Linear(out_channels, out_channels)

    def forward(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Apply the head; `counted` as in `CountedNorm`."""
        out: Tensor = self.project(F.relu(self.norm(self.widen(x), counted)))
        return out
