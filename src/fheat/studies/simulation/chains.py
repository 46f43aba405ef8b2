"""Chains of gates without a network, in the cosine basis; any number of them are trained side by side with AdamW.

A chain of gates with times tau_s = D_s^alpha multiplies the spectrum v of a signal and is fitted to a target y:

    L = 1/2 sum_k (m(k) v(k) - y(k))^2,    m = exp(-(sum_s tau_s) r^alpha)          (Theorem 1)
    dL/dtau = - sum_k r^alpha m(k) v(k) g(k),    g = m v - y                        (Proposition 1, eq. 15)
    P = - dL/dtau at tau = 0                                                        (eq. 16)

Everything is diagonal in the cosine basis and AdamW works element by element, so chains that are trained side by side
as one vector give exactly the same results as separate runs. Identity case: with all D = 0 a chain returns its signal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fheat.ops.heat import frequency_radius
from fheat.ops.parameterisation import Strength as Amount
from fheat.ops.parameterisation import strength as amount
from fheat.system.progress import Progress, silent

_ITERATIONS_BETWEEN_REPORTS = 100
"""Number of iterations between two calls of `progress`."""


@dataclass(frozen=True)
class Chains:
    """Chains of gates, each with a signal and a target, in float64."""

    spectrum: Tensor
    """Cosine spectra of the signals, (chains, modes)."""
    target: Tensor
    """Cosine spectra of the targets, (chains, modes)."""
    alpha: Tensor
    """Order of the gates of each chain, (chains,)."""
    start: Tensor
    """Strength D of every gate at the start, (gates,)."""
    chain: Tensor
    """Index of the chain that each gate belongs to, (gates,)."""

    @cached_property
    def radius_power(self) -> Tensor:
        """r^alpha, the eigenvalues of the fractional Laplacian, (chains, modes)."""
        radius = torch.from_numpy(frequency_radius(self.spectrum.shape[1]))
        return torch.as_tensor(radius ** self.alpha[:, None])

    @cached_property
    def _weighted(self) -> Tensor:
        return self.radius_power * self.spectrum

    def gradient(self, tau: Tensor) -> Tensor:
        """Return dL/dtau of every chain, (chains,), at the total times `tau`, (chains,), by eq. (15)."""
        multiplier = torch.exp(-tau[:, None] * self.radius_power)
        residual = multiplier * self.spectrum - self.target
        return -(self._weighted * multiplier * residual).sum(1)

    def pairing(self) -> Tensor:
        """Return P of every chain, (chains,): exactly 0 where the target is the signal, positive for a smoother one."""
        return 0.0 - self.gradient(torch.zeros_like(self.alpha))

    def best_strength(self) -> Tensor:
        """Return the D at which one gate fits best, (chains,): where the gradient changes sign, or 0 where P <= 0."""
        low, high = torch.zeros_like(self.alpha), torch.full_like(self.alpha, 100.0)
        for _ in range(80):
            middle = (low + high) / 2
            falls = self.gradient(middle) < 0
            low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
        return torch.where(self.pairing() > 0, low ** (1 / self.alpha), 0.0)


def side_by_side(parts: Sequence[Chains]) -> Chains:
    """Return several sets of chains as one."""
    offsets = np.cumsum([0, *(len(part.alpha) for part in parts)])
    return Chains(
        spectrum=torch.cat([part.spectrum for part in parts]),
        target=torch.cat([part.target for part in parts]),
        alpha=torch.cat([part.alpha for part in parts]),
        start=torch.cat([part.start for part in parts]),
        chain=torch.cat([part.chain + int(offset) for part, offset in zip(parts, offsets[:-1], strict=True)]),
    )


def train(
    chains: Chains,
    *,
    iterations: int,
    rate: float,
    decay: float,
    strength: str = "relu",
    keep: Sequence[int],
    progress: Progress = silent,
) -> Tensor:
    """Train delta of every gate with AdamW and return D at the iterations in `keep`, (kept, gates).

    Args:
        chains: the gates, their signals and targets.
        iterations: number of AdamW iterations.
        rate: learning rate.
        decay: decoupled weight decay.
        strength: how delta becomes D, as in `FractionalHeat`. Only `relu` can reach zero, and there it stays.
        keep: iterations whose D is returned; 0 is the start.
        progress: called with the number of iterations done and their total.
    """
    kind = amount(strength)
    delta = torch.tensor([kind.inverse(value) for value in chains.start.tolist()], dtype=torch.float64)
    delta.requires_grad_()
    optimiser = torch.optim.AdamW([delta], lr=rate, weight_decay=decay)
    wanted, kept = set(keep), []
    for iteration in range(iterations + 1):
        if iteration in wanted:
            kept.append(kind.map(delta.detach()).clone())
        if iteration == iterations:
            break
        tau = _times(delta, kind, chains)
        total = torch.zeros_like(chains.alpha).index_add(0, chains.chain, tau.detach())
        (delta.grad,) = torch.autograd.grad(tau, delta, chains.gradient(total)[chains.chain])
        optimiser.step()
        if iteration % _ITERATIONS_BETWEEN_REPORTS == 0:
            progress(iteration, iterations)
    return torch.stack(kept)


def _times(delta: Tensor, kind: Amount, chains: Chains) -> Tensor:
    """Return tau = D^alpha of every gate, computed from log D as in `FractionalHeat`: a closed gate has no gradient."""
    log_strength, closed = kind.log(delta)
    tau = torch.exp(chains.alpha[chains.chain] * log_strength)
    return tau if closed is None else torch.where(closed, 0.0, tau)


def even_share(time: float, gates: int, alpha: float) -> float:
    """Return the D of each of `gates` gates that share a total time evenly, (time / gates)^(1 / alpha) (eq. 14)."""
    return float((time / gates) ** (1 / alpha))


def penalties(time: float, gates: int, alpha: float) -> dict[str, float]:
    """Return sum D^2 of a total time shared evenly, and of the whole time at one gate (Remark 3).

    Their ratio is gates^(1 - 2 / alpha): sharing is cheaper for every alpha < 2.
    """
    return {
        "even": gates * even_share(time, gates, alpha) ** 2,
        "concentrated": even_share(time, 1, alpha) ** 2,
    }
