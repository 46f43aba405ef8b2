"""Theorems about how gates learn, measured: the pairing, its sign, absorption at zero, slope in D, even split, lock."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fheat import FractionalHeat
from fheat.ops.dct import dct
from fheat.ops.heat import frequency_radius

GRID = (6, 5, 4)
ALPHA = 0.75
Loss = Callable[[Tensor], Tensor]


def _drawn(seed: int) -> Tensor:
    return torch.randn(1, 2, *GRID, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _at(tau: float, v: Tensor, loss: Loss) -> float:
    """Return the loss behind a gate with this diffusion time."""
    return float(loss(FractionalHeat(alpha=ALPHA, strength=tau ** (1 / ALPHA))(v)))


def _pairing(v: Tensor, loss: Loss, tau: float = 0.0) -> float:
    """Return sum_k r^alpha m(k) v^(k) g^(k), the right-hand side of eq. (15) and (16) without its sign."""
    power = torch.from_numpy(frequency_radius(*GRID) ** ALPHA)
    multiplier = torch.exp(-tau * power)
    z = FractionalHeat(alpha=ALPHA, strength=tau ** (1 / ALPHA))(v).clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(z), z)
    return float((power * multiplier * dct(v) * dct(g)).sum())


def _some_loss(seed: int) -> Loss:
    weight = _drawn(10_000 + seed)
    return lambda z: (torch.sin(z) * weight).sum() + 0.1 * z.square().sum()


def first_variation() -> dict[str, float]:
    """Compare dL/dtau by autograd and by differences with minus the pairing, at tau > 0 and at tau = 0 (C13)."""
    by_autograd, by_differences, at_zero = [], [], []
    for seed in range(10):
        v, loss, tau, step = _drawn(seed), _some_loss(seed), 0.3, 1e-5
        expected = -_pairing(v, loss, tau)
        gate = FractionalHeat(alpha=ALPHA, initial_strength=1.0).double()
        gate.delta.data.fill_(tau ** (1 / ALPHA))
        loss(gate(v)).backward()
        in_tau = gate.delta.grad.item() * tau ** (1 / ALPHA - 1) / ALPHA
        by_autograd.append(abs(in_tau / expected - 1))
        difference = (_at(tau + step, v, loss) - _at(tau - step, v, loss)) / (2 * step)
        by_differences.append(abs(difference / expected - 1))
        one, two = ((_at(h, v, loss) - float(loss(v))) / h for h in (step, 2 * step))
        at_zero.append(abs((2 * one - two) / -_pairing(v, loss) - 1))
    return {
        "autograd": max(by_autograd),
        "differences": max(by_differences),
        "differences_at_zero": max(at_zero),
    }


def sign() -> dict[str, Any]:
    """Count how often the sign of P tells whether the loss falls on opening, and show both outcomes at P = 0 (C14)."""
    tried, right, tau = 200, 0, 1e-7
    for seed in range(tried):
        v, loss = _drawn(seed), _some_loss(seed)
        right += (_pairing(v, loss) > 0) == (_at(tau, v, loss) < float(loss(v)))
    v = _drawn(0)

    def at_its_least(z: Tensor) -> Tensor:
        return 0.5 * (z - v).square().sum()

    def at_its_largest(z: Tensor) -> Tensor:
        return -0.5 * (z - v).square().sum()

    zero = {
        name: {"P": abs(_pairing(v, loss)), "change_of_loss": _at(0.1, v, loss) - float(loss(v))}
        for name, loss in (("minimum", at_its_least), ("maximum", at_its_largest))
    }
    return {"tried": tried, "right": right, "at_P_0": zero}


OPTIMISERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW, decoupled decay": lambda learned: torch.optim.AdamW(learned, lr=0.01, weight_decay=1e-3),
    "AdamW, no decay": lambda learned: torch.optim.AdamW(learned, lr=0.01, weight_decay=0.0),
    "gradient descent, eq. (19)": lambda learned: torch.optim.SGD(learned, lr=0.01, weight_decay=1e-3),
    "Adam, coupled decay": lambda learned: torch.optim.Adam(learned, lr=0.01, weight_decay=1e-3),
}


def absorption() -> dict[str, Any]:
    """Close a gate, then let the loss want it open: is it open in any later step? (C17)

    `moved_on` is how far the momentum carries delta below the value at which it closed.
    """
    outcome = {}
    for name, build in OPTIMISERS.items():
        gate = FractionalHeat().double()
        optimiser = build([gate.delta])
        x = _drawn(3)
        deltas = []
        for step in range(160):
            optimiser.zero_grad()
            wanted = -1.0 if step < 60 else 1e4
            (wanted * (gate(x).square().mean() - gate.strength)).backward()
            optimiser.step()
            deltas.append(gate.delta.item())
        closing = next(step for step, delta in enumerate(deltas) if delta <= 0)
        later = deltas[closing:]
        outcome[name] = {
            "closed_after": closing + 1,
            "open_later": sum(delta > 0 for delta in later),
            "moved_on": later[0] - min(later),
        }
    return outcome


def left_closed() -> dict[str, Any]:
    """Count the iterations in which a gate that the loss wants closed is open again, of 4,000 (C17).

    Only delta is kept: its gradient is 0.0001 while it is positive and zero afterwards, as for a gate. Decay that is a
    part of the gradient is then all of the gradient. Adam divides it by its own size, so it moves delta by whole steps,
    up to zero and over it.
    """
    opened = {}
    for name in ("AdamW, decoupled decay", "Adam, coupled decay"):
        delta = torch.nn.Parameter(torch.tensor(0.03))
        optimiser = OPTIMISERS[name]([delta])
        values = []
        for _ in range(4000):
            delta.grad = torch.where(delta.detach() > 0, 1e-4, 0.0)
            optimiser.step()
            values.append(delta.item())
        closing = next(step for step, value in enumerate(values) if value <= 0)
        opened[name] = sum(value > 0 for value in values[closing:])
    return opened


def slope_at_zero() -> dict[str, float]:
    """Fit the power of D with which dL/dD grows as D falls to zero; eq. (16) and the chain rule say alpha - 1 (C17)."""
    v, loss = _drawn(5), _some_loss(5)
    strengths = [10.0**-power for power in range(6, 13)]
    slopes = []
    for strength in strengths:
        gate = FractionalHeat(alpha=ALPHA, initial_strength=1.0).double()
        gate.delta.data.fill_(strength)
        loss(gate(v)).backward()
        slopes.append(abs(gate.delta.grad.item()))
    power = np.polyfit(np.log(strengths), np.log(slopes), 1)[0]
    return {"power_of_D": float(power), "alpha_minus_one": ALPHA - 1}


def even_split() -> dict[str, Any]:
    """Minimise sum D^2 for a given sum of D^alpha numerically, and compare the even split with one gate (C11)."""
    count, total = 8, 2.0

    def both(alpha: float) -> tuple[float, float]:
        return count * (total / count) ** (2 / alpha), total ** (2 / alpha)

    best, spread = math.inf, 0.0
    for seed in range(5):
        start = np.random.default_rng(seed).uniform(0.01, 0.5, count)
        found = minimize(
            lambda d: float((d**2).sum()),
            start,
            jac=lambda d: 2 * d,
            method="SLSQP",
            bounds=[(1e-9, None)] * count,
            constraints={"type": "eq", "fun": lambda d: float((d**ALPHA).sum()) - total},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if found.fun < best:
            best, spread = float(found.fun), float(np.ptp(found.x))
    even, one = both(ALPHA)
    orders = np.arange(1, 31) / 10
    cheaper = [round(float(alpha), 1) for alpha in orders if both(alpha)[0] < both(alpha)[1] * (1 - 1e-12)]
    return {
        "even": even,
        "one_gate": one,
        "numerical_minimum": best,
        "spread_at_minimum": spread,
        "largest_alpha_where_even_is_cheaper": max(cheaper),
    }


def lock() -> dict[str, Any]:
    """Train a closed gate and a learned filter that starts as the identity on noise, and see which stays there (C01).

    The filter is that of GFNet: one complex weight for every mode of a Fourier transform, here all ones. Distances are
    norms of f(x) - x over that of x. FNet has no weights; its mixing is the real part of the transform.
    """
    length = 32
    x = torch.randn(4, 2, length, generator=torch.Generator().manual_seed(0))
    ones = torch.zeros(2, length // 2 + 1, 2)
    ones[..., 0] = 1.0
    weight = torch.nn.Parameter(ones)
    gate = FractionalHeat(dims=1, initial_strength=0.0)

    def filtered(signal: Tensor) -> Tensor:
        return torch.fft.irfft(torch.view_as_complex(weight) * torch.fft.rfft(signal), n=length)

    def apart(y: Tensor) -> float:
        return ((y - x).norm() / x.norm()).item()

    before = {"gate": apart(gate(x)), "learned filter": apart(filtered(x))}
    for function, learned in ((gate, list(gate.parameters())), (filtered, [weight])):
        optimiser = torch.optim.AdamW(learned, lr=0.01, weight_decay=1e-4)
        for step in range(100):
            optimiser.zero_grad()
            noise = torch.randn(4, 2, length, generator=torch.Generator().manual_seed(1 + step))
            (function(x) * noise).sum().backward()
            optimiser.step()
    fixed = torch.fft.fft2(x).real
    return {
        "before": before,
        "after_100_steps": {"gate": apart(gate(x)), "learned filter": apart(filtered(x))},
        "fixed_fourier_mixing": apart(fixed),
    }
