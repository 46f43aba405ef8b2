"""AdamW with a rate of its own for gates and rational coefficients, and an update that skips what is not finite."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat
from fheat.ops.rational import Rational


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
