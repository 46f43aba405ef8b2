"""The learning rate over the iterations, and AdamW with factors for gates and rational coefficients.

The update skips gradients that are not finite, and all of it is tensor code, so that a captured graph can hold it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.rational import Rational
from fheat.training.settings import OptimiserSettings

if TYPE_CHECKING:
    from fheat.training.one_vector import OneVector


class Spike(NamedTuple):
    """From iteration `at` on, counted from 0, the learning rate is `factor` times as large for `length` iterations."""

    at: int
    length: int
    factor: float


NO_SPIKE = Spike(0, 0, 1.0)


class Schedule(NamedTuple):
    """The course of the learning rate: linear warm-up, then half a cosine to zero, perhaps with a spike."""

    iterations: int
    warm_up: int = 0
    spike: Spike = NO_SPIKE

    def factor(self, iteration: Tensor) -> Tensor:
        """Return the factor of the learning rate in an iteration, counted from 0, as a tensor on its device.

        (n + 1) / warm_up in the warm-up, then (1 + cos(pi (n - warm_up) / (iterations - warm_up))) / 2; times the
        spike.
        """
        n = iteration.double()
        rising = (n + 1) / max(self.warm_up, 1)
        falling = (1 + torch.cos(math.pi * (n - self.warm_up) / max(self.iterations - self.warm_up, 1))) / 2
        factor = torch.where(n < self.warm_up, rising, falling.clamp(min=0))
        spiked = (n >= self.spike.at) & (n < self.spike.at + self.spike.length)
        return torch.where(spiked, self.spike.factor * factor, factor).float()


class AdamW:
    """AdamW whose learning rate, clipping and skipping are tensors.

    An update whose gradient has a norm that is not finite changes nothing but `skipped`, which counts it. Gradients
    longer than `settings.clip` are scaled to that length. `also` are parameters beside those of the network, and
    `holder` is the module that has them, such as a method with a second network.

    On a GPU parameters in float32 are updated together, by one kernel, in an iteration in which all of them have a
    gradient. Everywhere else torch updates those that have one, with the same moments.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: OptimiserSettings,
        also: Iterable[nn.Parameter] = (),
        holder: nn.Module | None = None,
    ) -> None:
        self.parameters = [parameter for parameter in (*model.parameters(), *also) if parameter.requires_grad]
        device = self.parameters[0].device
        self.clip = math.inf if settings.clip is None else settings.clip
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        groups = parameters_by_rate(model, settings, also, holder)
        self._rates = list(groups)
        self.adamw = torch.optim.AdamW(
            [{"params": some, "lr": torch.zeros((), device=device)} for some in groups.values()],
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        self._vector = self._in_one({id(one): rate for rate, some in groups.items() for one in some})

    def _in_one(self, rates: Mapping[int, float]) -> "OneVector | None":
        """Return a vector of all parameters, with these rates by id, which holds the moments; None where kernels do not
        run or cannot update all parameters."""
        dense = all(one.dtype == torch.float32 and one.is_contiguous() for one in self.parameters)
        if not dense or not kernels.usable(self.parameters[0]):
            return None
        from fheat.training.one_vector import OneVector  # Triton takes a second to import

        vector = OneVector(self.parameters, [rates[id(one)] for one in self.parameters])
        self.adamw.state.update(zip(self.parameters, vector.moments, strict=True))
        return vector

    def step(self, factor: Tensor) -> Tensor:
        """Update the parameters, learning rates times `factor`; return the norm of the gradient."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        complete = len(gradients) == len(self.parameters)
        if self._vector is not None and complete and kernels.usable(self.parameters[0]):
            norm, finite = self._vector.update(gradients, factor, self.clip, self.adamw.param_groups[0])
            self.skipped += ~finite
            return norm
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

    def state(self) -> dict[str, Tensor]:
        """Return the moments of every parameter, by its place among the parameters."""
        return {
            f"{index}.{name}": value
            for index, parameter in enumerate(self.parameters)
            for name, value in self.adamw.state[parameter].items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            index, _, moment = name.partition(".")
            # The step count of a fused update lies on the device of the parameter.
            moments.setdefault(int(index), {})[moment] = value.to(self.skipped.device)
        for place, values in moments.items():
            own = self.adamw.state[self.parameters[place]]
            if self._vector is None:
                own.update(values)
            else:  # in place: they are parts of a vector
                for name, value in values.items():
                    own[name].copy_(value)


def parameters_by_rate(
    model: nn.Module,
    settings: OptimiserSettings,
    also: Iterable[nn.Parameter] = (),
    holder: nn.Module | None = None,
) -> dict[float, list[nn.Parameter]]:
    """Return the trained parameters by their learning rate after the warm-up.

    Gates and rational activations have rates of their own, in the network and in the `holder` of `also`.
    """
    factors: dict[int, float] = {}
    for module in (*model.modules(), *(() if holder is None else holder.modules())):
        if isinstance(module, FractionalHeat):
            for parameter, factor in ((module.theta, settings.theta), (module.delta, settings.delta)):
                if parameter is not None:
                    factors[id(parameter)] = factor
        elif isinstance(module, Rational):
            factors |= {id(parameter): settings.rational for parameter in module.parameters()}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in (*model.parameters(), *also):
        if parameter.requires_grad:
            rate = factors.get(id(parameter), 1.0) * settings.learning_rate
            groups.setdefault(rate, []).append(parameter)
    return groups
