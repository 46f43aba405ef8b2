"""The learning rate over the iterations: linear warm-up, then half a cosine to zero."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat
from fheat.ops.rational import Rational


class Spike(NamedTuple):
    """From iteration `at` on, counted from 0, the rate is `factor` times what it would be, for `length` iterations."""

    at: int
    length: int
    factor: float


NO_SPIKE = Spike(0, 0, 1.0)


def rate_factor(iteration: Tensor, *, iterations: int, warm_up: int, spike: Spike = NO_SPIKE) -> Tensor:
    """Return what the base rate is multiplied with in an iteration, counted from 0, as a tensor on its device.

    (n + 1) / warm_up in the warm-up, then (1 + cos(pi (n - warm_up) / (iterations - warm_up))) / 2; times the spike.
    """
    n = iteration.double()
    rising = (n + 1) / max(warm_up, 1)
    falling = (1 + torch.cos(math.pi * (n - warm_up) / max(iterations - warm_up, 1))) / 2
    factor = torch.where(n < warm_up, rising, falling.clamp(min=0))
    spiked = (n >= spike.at) & (n < spike.at + spike.length)
    return torch.where(spiked, spike.factor * factor, factor).float()


def released_rate(iteration: int, *, base: float = 0.01, iterations: int = 15_000, warm_up: int = 500) -> float:
    """Return the rate of the released CSE code, which is written after each step: 0.01, 2e-5, 4e-5, ...

    Its first step therefore takes the full rate; kept as a record, the loop uses `rate_factor`.
    """
    if iteration == 0:
        return base
    if iteration < warm_up:
        return base * iteration / warm_up
    return base * (1 + math.cos(math.pi * (iteration - warm_up) / (iterations - warm_up))) / 2


@dataclass(frozen=True)
class Rates:
    """Learning rate and what it is multiplied with for some parameters."""

    base: float = 0.01
    theta: float = 1.0
    delta: float = 1.0
    rational: float = 0.05


class Optimiser:
    """AdamW whose rate, clipping and skipping are tensors, so that a captured graph can hold the whole update.

    A step whose gradient has a norm that is not finite changes nothing but `skipped`, which counts it. Gradients
    longer than `clip` are scaled to that length.
    """

    def __init__(self, model: nn.Module, rates: Rates, *, weight_decay: float, clip: float) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        device = self.parameters[0].device
        self.clip = clip
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        by_rate = parameters_by_rate(model, rates)
        self._rates = list(by_rate)
        groups = [{"params": some, "lr": torch.zeros((), device=device)} for some in by_rate.values()]
        self.adamw = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True, capturable=device.type == "cuda")

    def step(self, factor: Tensor) -> Tensor:
        """Update the parameters with their gradients, rates times `factor`; return the norm of the gradient."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        for group, rate in zip(self.adamw.param_groups, self._rates, strict=True):
            group["lr"].copy_(rate * factor)
        broken = ~torch.isfinite(norm)
        # The fused kernel divides by the one and does nothing where the other is set, without asking the host.
        self.adamw.grad_scale = (norm / self.clip).clamp(min=1.0)  # type: ignore[attr-defined]
        self.adamw.found_inf = broken.float()  # type: ignore[attr-defined]
        self.adamw.step()
        self.skipped += broken
        return norm

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.adamw.zero_grad(set_to_none=True)


def parameters_by_rate(model: nn.Module, rates: Rates) -> dict[float, list[nn.Parameter]]:
    """Return the learned parameters by the rate they start from."""
    special: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, FractionalHeat):
            for parameter, factor in ((module.theta, rates.theta), (module.delta, rates.delta)):
                if parameter is not None:
                    special[id(parameter)] = factor
        elif isinstance(module, Rational):
            special |= {id(parameter): rates.rational for parameter in module.parameters()}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(special.get(id(parameter), 1.0) * rates.base, []).append(parameter)
    return groups
