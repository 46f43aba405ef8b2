"""How the two raw parameters of a gate become its order alpha and its strength D.

The paper's gate is `bounded` and `relu`; the others are its controls. Only `relu` reaches zero, so only it can close.
A kind with a `value` is a constant and has no parameter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Order:
    """alpha as a function of theta; `value` is set where alpha is constant."""

    name: str
    map: Callable[[Tensor], Tensor]
    value: float | None = None

    def scalar(self, theta: float) -> float:
        """Return alpha for one number, through the same formula as the tensor."""
        return float(self.map(torch.tensor(theta, dtype=torch.float64)))


@dataclass(frozen=True)
class Amount:
    """D as a function of delta; `value` is set where D is constant."""

    name: str
    map: Callable[[Tensor], Tensor]
    inverse: Callable[[float], float]
    log: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    """delta -> (log D, flag "closed" or None where D cannot be zero); finite with finite gradients everywhere."""
    value: float | None = None
    closes: bool = False
    """Whether D can be exactly zero."""


def order(kind: str | float, initial_theta: float) -> Order:
    """Return the order of this kind: `bounded`, `softplus`, `fixed` (at its initial value) or a number in (0, 2]."""
    checked_number("initial_theta", initial_theta)
    if kind == "bounded":
        return Order("bounded", _bounded)
    if kind == "softplus":
        return Order("softplus", _unbounded)
    if kind == "fixed":
        kind = Order("bounded", _bounded).scalar(initial_theta)
    if isinstance(kind, str):
        raise ValueError(f"alpha={kind!r} is unknown: use 'bounded', 'softplus', 'fixed' or a number in (0, 2]")
    value = checked_number("alpha", kind, low=0.0, high=2.0)
    if value == 0.0:
        raise ValueError("alpha=0.0 is outside (0, 2]: at order zero the operator is no diffusion")
    return Order(f"{value:.4g}", _bounded, value)


def amount(kind: str | float) -> Amount:
    """Return the strength of this kind: `relu`, `softplus`, `exp`, or a number >= 0 to freeze it."""
    if kind == "relu":
        return Amount("relu", F.relu, _same, _log_relu, closes=True)
    if kind == "softplus":
        return Amount("softplus", F.softplus, _inverse_softplus, _log_softplus)
    if kind == "exp":
        return Amount("exp", torch.exp, _inverse_exp, _log_exp)
    if isinstance(kind, str):
        raise ValueError(f"strength={kind!r} is unknown: use 'relu', 'softplus', 'exp' or a number >= 0")
    value = checked_number("strength", kind, low=0.0, high=1e30)
    return Amount(f"{value:.4g}", F.relu, _same, _log_relu, value, closes=True)


def checked_number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return the value as float, or raise a one-line error that names it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} is not a number") from None
    if not math.isfinite(number) or not low <= number <= high:
        raise ValueError(f"{name}={value!r} is out of range: use a finite number in [{low}, {high}]")
    return number


def _bounded(theta: Tensor) -> Tensor:
    return 0.3 + 0.6 * torch.sigmoid(theta)


def _unbounded(theta: Tensor) -> Tensor:
    return 0.3 + F.softplus(theta)


def _log_relu(delta: Tensor) -> tuple[Tensor, Tensor | None]:
    # NaN is not <= 0, so a broken parameter shows in the output instead of passing as a closed gate.
    closed = delta <= 0
    return torch.log(torch.where(closed, 1.0, delta)), closed


def _log_softplus(delta: Tensor) -> tuple[Tensor, Tensor | None]:
    # Far to the left softplus(delta) underflows while its logarithm is simply delta.
    far = delta < -20
    return torch.where(far, delta, torch.log(F.softplus(torch.where(far, 0.0, delta)))), None


def _log_exp(delta: Tensor) -> tuple[Tensor, Tensor | None]:
    return delta, None


def _same(strength: float) -> float:
    return strength


def _inverse_softplus(strength: float) -> float:
    return _positive(strength, "softplus") + math.log(-math.expm1(-strength))


def _inverse_exp(strength: float) -> float:
    return math.log(_positive(strength, "exp"))


def _positive(strength: float, kind: str) -> float:
    if strength <= 0:
        raise ValueError(f"a strength of {strength} cannot be reached with strength={kind!r}: use a value > 0")
    return strength
