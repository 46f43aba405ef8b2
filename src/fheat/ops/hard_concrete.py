"""Hard-concrete L0 gates: the heat operator behind a random switch whose probability to be on is penalised.

The switch is that of C. Louizos, M. Welling and D. P. Kingma, *Learning Sparse Neural Networks through L0
Regularization*, ICLR 2018, with its constants.
"""

import math
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat
from fheat.ops.parameterisation import checked_number

TEMPERATURE: Final = 2 / 3
LOW: Final = -0.1
HIGH: Final = 1.1
"""Ends of the interval to which the concrete distribution is stretched before it is cut to [0, 1]."""
CLOSED_BELOW: Final = math.log(-LOW / HIGH)
"""Logit up to which the switch is exactly 0 at evaluation: sigmoid(logit) (HIGH - LOW) + LOW <= 0."""
_EDGE: Final = 1e-6
"""Distance of the uniform numbers from 0 and 1, where their logits are infinite."""


class HardConcreteHeat(FractionalHeat):
    r"""The heat operator T behind a switch z in [0, 1].

    .. math::  y = v + z (T(v) - v) = C^{-1} [ (1 + z (m - 1)) \cdot C(v) ]

    In training every call draws u uniformly from (0, 1) and takes
    z = clip(s (HIGH - LOW) + LOW, 0, 1) with s = sigmoid((logit(u) + a) / TEMPERATURE) and the learned logit a; at
    evaluation s = sigmoid(a). The strength of T is `softplus`, which never closes, so that only the switch can.
    `penalty` is what the training adds to the loss.

    Shapes: those of `FractionalHeat`. Identity case: at evaluation z is exactly 0 for a <= log(-LOW / HIGH) = -2.398,
    and the output is the input, bit for bit: `fheat.retire` removes the gate. **This zero is not absorbing**: in
    training z is still drawn above 0 now and then, and gradients can open the switch again.

    Args:
        weight: factor of the penalty, the price of one open gate in units of the loss. Its gradient at the logit is at
            most a quarter of it; a site stays open where the loss pulls harder.
        initial_logit: the logit a before training; 0 opens the switch half-way at evaluation.
        heat: `alpha`, `initial_theta`, `initial_strength`, `size`, `dims` or `transform` of `FractionalHeat`.
    """

    stays_closed: ClassVar[bool] = False
    logit: nn.Parameter | None

    def __init__(self, *, weight: float = 1e-4, initial_logit: float = 0.0, **heat: Any) -> None:
        super().__init__(strength="softplus", **heat)
        self.weight = checked_number("weight", weight, low=0.0)
        self._initial_logit = checked_number("initial_logit", initial_logit)
        self.logit = nn.Parameter(torch.tensor(self._initial_logit))

    @property
    def strength(self) -> Tensor:
        """Strength D of the heat operator, or 0 where the switch is off at evaluation."""
        return super().strength if self.logit is None else torch.where(self._off(self.logit), 0.0, super().strength)

    @property
    def closed(self) -> bool:
        """Whether the switch is exactly 0 at evaluation. Reads the value from the device."""
        self.check_parameters()
        return self.logit is None or bool(self._off(self.logit))

    @property
    def one_response(self) -> bool:
        """Whether the switch is the same in every call: not in training, where every call draws its own."""
        return not self.training

    def penalty(self) -> Tensor:
        """Return weight times the probability that a draw of z is not 0; the gradient pushes the logit down."""
        assert self.logit is not None
        return self.weight * torch.sigmoid(self.logit - TEMPERATURE * CLOSED_BELOW)

    def bypass(self, alpha: float) -> None:
        """Remove the gate from the graph whatever its state, and remember `alpha`. Only `retire` is exact."""
        super().bypass(alpha)
        self.logit = None

    def set_strength(self, value: float) -> None:
        """Set D: 0 turns the switch off, and a positive value turns one that is off half-way on."""
        if value != 0 or self.retired:
            super().set_strength(value)
        if self.logit is not None and (value == 0 or self.closed):
            with torch.no_grad():
                self.logit.fill_(2 * CLOSED_BELOW if value == 0 else 0.0)

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is NaN or infinite, or has no value. Reads the values from the device."""
        super().check_parameters()
        if self.logit is not None and not math.isfinite(self.logit.item()):
            raise ValueError("logit of this HardConcreteHeat is not finite: training diverged, go back to a checkpoint")

    def tau_slope(self, multiplier: Tensor) -> Tensor:
        """Return -(dM / dtau) / r^alpha = z m, given M = 1 + z (m - 1). In training z is that of a new draw."""
        assert self.logit is not None
        return multiplier - 1 + self._switch(self.logit).to(multiplier.dtype)

    def _multiplier(self, grid: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None]:
        multiplier, _ = super()._multiplier(grid, like)
        assert self.logit is not None
        z = self._switch(self.logit).to(multiplier.dtype)
        return 1 + z * (multiplier - 1), z <= 0

    def _switch(self, logit: Tensor) -> Tensor:
        if self.training:
            u = torch.rand_like(logit).clamp(_EDGE, 1 - _EDGE)
            logit = (torch.logit(u) + logit) / TEMPERATURE
        return (torch.sigmoid(logit) * (HIGH - LOW) + LOW).clamp(0, 1)

    @staticmethod
    def _off(logit: Tensor) -> Tensor:
        """Return the flag "off at evaluation", by the arithmetic of `_switch`."""
        return torch.sigmoid(logit) * (HIGH - LOW) + LOW <= 0


def penalty_of(*networks: nn.Module) -> Tensor | None:
    """Return the sum of the penalties of all switches of some networks, or None where they have none."""
    modules = dict.fromkeys(module for network in networks for module in network.modules())
    penalties = [one.penalty() for one in modules if isinstance(one, HardConcreteHeat) and one.logit is not None]
    return torch.stack(penalties).sum() if penalties else None
