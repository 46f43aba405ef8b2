"""Small multilayer perceptrons on the rows of a matrix, with batch norm by the statistics of all processes' rows."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.system import processes

MOMENTUM = 0.1
"""Share of a batch in the running statistics."""
EPSILON = 1e-5


class VectorHead(nn.Module):
    """Linear, batch norm, leaky ReLU, linear: rows (N, in) to (N, out), at least in float32.

    Args:
        widths: numbers of input, hidden and output channels.
        slope: slope of the activation below zero; 0 is ReLU.
        running: whether the norm keeps running statistics.
    """

    def __init__(self, *widths: int, slope: float = 0.0, running: bool = False) -> None:
        super().__init__()
        channels, hidden, outputs = widths
        self.first, self.norm = nn.Linear(channels, hidden), RowNorm(hidden, running=running)
        self.last = nn.Linear(hidden, outputs)
        self.slope = slope

    def forward(self, rows: Tensor, counted: Tensor | None = None, *, running: bool = False) -> Tensor:
        """Apply the head to all rows; `counted` and `running` as in `RowNorm.forward`."""
        hidden = F.leaky_relu(self.norm(self.first(rows), counted, running=running), self.slope)
        return precise(self.last(hidden))


class RowNorm(nn.Module):
    """Batch norm of rows, (N, C): y = (x - mean) / sqrt(variance + epsilon) weight + bias, per channel.

    As `nn.BatchNorm1d`, but mean and variance are those of the rows of all processes together, and of a part of the
    rows where only these count: all rows are normalised, so that shapes do not depend on how many they are. Running
    statistics are kept only if `running` is set.
    """

    mean: Tensor | None
    variance: Tensor | None

    def __init__(self, channels: int, *, running: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels) if running else None)
        self.register_buffer("variance", torch.ones(channels) if running else None)

    def forward(self, rows: Tensor, counted: Tensor | None = None, *, running: bool = False) -> Tensor:
        """Normalise the rows.

        Args:
            rows: (N, C).
            counted: (N,) bool, the rows that make the statistics; all by default.
            running: whether to use the running statistics, and leave them as they are.
        """
        rows = precise(rows)
        if running:
            if self.mean is None or self.variance is None:
                raise ValueError("this norm keeps no running statistics: build it with running=True")
            mean, variance = self.mean, self.variance
        else:
            mean, variance = self._statistics(rows, counted)
        return (rows - mean) * (variance + EPSILON).rsqrt() * self.weight + self.bias

    def _statistics(self, rows: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the rows that count, and move the running ones if there are at least two."""
        weights = torch.ones_like(rows[:, :1]) if counted is None else counted[:, None].to(rows.dtype)
        total = processes.current().sum(weights.sum())
        mean = sum_both_ways((weights * rows).sum(dim=0)) / total.clamp(min=1)
        variance = sum_both_ways((weights * (rows - mean).square()).sum(dim=0)) / total.clamp(min=1)
        if self.mean is not None and self.variance is not None:
            share = MOMENTUM * (total > 1).to(self.mean.dtype)
            unbiased = variance.detach() * total / (total - 1).clamp(min=1)
            self.mean.lerp_(mean.detach().to(self.mean.dtype), share)
            self.variance.lerp_(unbiased.to(self.variance.dtype), share)
        return mean, variance


def precise(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 if it is that."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def sum_both_ways(part: Tensor) -> Tensor:
    """Add up a tensor over the processes, and the gradients of the sum as well.

    For sums from which every process goes on with its own rows. `Group.sum` is for those from which all go on to the
    same value: it knows the gradients of the others without asking them.
    """
    if processes.current().size == 1:
        return part
    total: Tensor = _SumBothWays.apply(part)  # type: ignore[no-untyped-call]
    return total


class _SumBothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return processes.current().sum(part.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return processes.current().sum(gradients[0].detach())
