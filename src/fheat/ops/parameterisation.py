"""The functions that turn the two parameters of a gate into its order alpha and its strength D.

The paper's gate has a `bounded` order and a `relu` strength; the other kinds are controls. Only `relu` reaches zero, so
only such a gate can close. A kind with a `value` is a constant and has no parameter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Order:
    """The order alpha as a function of theta; `value` is set if alpha is constant."""

    name: str
    map: Callable[[Tensor], Tensor]
    value: float | None = None

    def scalar(self, theta: float) -> float:
        """Return alpha for one number, by the same formula as for a tensor."""
        return float(self.map(torch.tensor(theta, dtype=torch.float64)))


@dataclass(frozen=True)
class Strength:
    """The strength D as a function of delta; `value` is set if D is constant."""

    name: str
    map: Callable[[Tensor], Tensor]
    inverse: Callable[[float], float]
    log: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    """Maps delta to log D and the flag "closed" (None if D cannot be zero); log D and its gradient stay finite."""
    value: float | None = None
    closes: bool = False
    """Whether D can be exactly zero."""


def order(kind: str | float, initial_theta: float) -> Order:
    """Return the order of a kind: `bounded`, `softplus`, `fixed` (at its initial value) or a number in (0, 2]."""
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


def theta_of(kind: str | float, alpha: float) -> float:
    """Return the theta at which an order that is trained, `bounded` or `softplus`, has this alpha."""
    value = checked_number("initial_alpha", alpha)
    if kind == "bounded" and 0.3 < value < 0.9:
        return math.log((value - 0.3) / (0.9 - value))
    if kind == "softplus" and value > 0.3:
        return _inverse_softplus(value - 0.3)
    ranges = {"bounded": "between 0.3 and 0.9", "softplus": "above 0.3"}
    if kind in ranges:
        raise ValueError(f"initial_alpha={value} is out of range: alpha={kind!r} takes a number {ranges[str(kind)]}")
    raise ValueError(f"initial_alpha is for alpha 'bounded' or 'softplus', not {kind!r}: leave it out")


def strength(kind: str | float) -> Strength:
    """Return the strength of a kind: `relu`, `softplus`, `exp`, or a number >= 0 to freeze it."""
    if kind == "relu":
        return Strength("relu", F.relu, _same, _log_relu, closes=True)
    if kind == "softplus":
        return Strength("softplus", F.softplus, _inverse_softplus, _log_softplus)
    if kind == "exp":
        return Strength("exp", torch.exp, _inverse_exp, _log_exp)
    if isinstance(kind, str):
        raise ValueError(f"strength={kind!r} is unknown: use 'relu', 'softplus', 'exp' or a number >= 0")
    value = checked_number("strength", kind, low=0.0, high=1e30)
    return Strength(f"{value:.4g}", F.relu, _same, _log_relu, value, closes=True)


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
    # For very negative delta softplus(delta) underflows, while its logarithm is simply delta.
    far = delta < -20
    return torch.where(far, delta, torch.log(F.softplus(torch.where(far, 0.0, delta)))), None


def _log_exp(delta: Tensor) -> tuple[Tensor, Tensor | None]:
    return delta, None


def _same(value: float) -> float:
    return value


def _inverse_softplus(value: float) -> float:
    return _positive(value, "softplus") + math.log(-math.expm1(-value))


def _inverse_exp(value: float) -> float:
    return math.log(_positive(value, "exp"))


def _positive(value: float, kind: str) -> float:
    if value <= 0:
        raise ValueError(f"a strength of {value} cannot be reached with strength={kind!r}: use a value > 0")
    return value
