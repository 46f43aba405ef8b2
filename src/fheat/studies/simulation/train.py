"""Gates without a network: chains of gates in the cosine basis, any number of them trained side by side by AdamW.

A chain of gates with times tau_s = D_s^alpha multiplies the spectrum v of a signal and is fitted to a target y:

    L = 1/2 sum_k (m(k) v(k) - y(k))^2,    m = exp(-(sum_s tau_s) r^alpha)          (Theorem 1)
    dL/dtau = - sum_k r^alpha m(k) v(k) g(k),    g = m v - y                        (Proposition 1, eq. 15)
    P = - dL/dtau at tau = 0                                                        (eq. 16)

Everything is diagonal in the cosine basis and AdamW works element by element, so any number of chains trained side by
side as one vector are, exactly, that many runs of their own. Identity case: with all D = 0 a chain returns its signal.
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

_PROGRESS_EVERY = 100


@dataclass(frozen=True)
class Chains:
    """Chains of gates and what each is to do, in float64.

    Shapes: `spectrum` and `target` (chains, modes), the cosine spectra of signal and target; `alpha` (chains,); `start`
    (gates,), every D at the start; `chain` (gates,), the chain each gate is in.
    """

    spectrum: Tensor
    target: Tensor
    alpha: Tensor
    start: Tensor
    chain: Tensor

    @cached_property
    def radius_power(self) -> Tensor:
        """r^alpha, the eigenvalues of the fractional Laplacian, (chains, modes)."""
        radius = torch.from_numpy(frequency_radius(self.spectrum.shape[1]))
        return torch.as_tensor(radius ** self.alpha[:, None])

    @cached_property
    def _weighted(self) -> Tensor:
        return self.radius_power * self.spectrum

    def slope(self, tau: Tensor) -> Tensor:
        """Return dL/dtau of every chain at the total times `tau`, (chains,), by eq. (15)."""
        multiplier = torch.exp(-tau[:, None] * self.radius_power)
        residual = multiplier * self.spectrum - self.target
        return -(self._weighted * multiplier * residual).sum(1)

    def pairing(self) -> Tensor:
        """Return P of every chain, (chains,): exactly 0 where the target is the signal, positive where smoother."""
        return 0.0 - self.slope(torch.zeros_like(self.alpha))

    def best_strength(self) -> Tensor:
        """Return, (chains,), the D at which one gate fits best: where the slope changes sign, 0 where P <= 0."""
        low, high = torch.zeros_like(self.alpha), torch.full_like(self.alpha, 100.0)
        for _ in range(80):
            middle = (low + high) / 2
            falls = self.slope(middle) < 0
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


def descend(
    chains: Chains,
    *,
    iterations: int,
    rate: float,
    decay: float,
    strength: str = "relu",
    keep: Sequence[int],
    progress: Progress = silent,
) -> Tensor:
    """Train every delta with AdamW and return D after each iteration in `keep` (0 is the start), (kept, gates).

    `strength` is how delta becomes D, as in `FractionalHeat`: only `relu` can reach zero, and once there it stays.
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
        (delta.grad,) = torch.autograd.grad(tau, delta, chains.slope(total)[chains.chain])
        optimiser.step()
        if iteration % _PROGRESS_EVERY == 0:
            progress(iteration, iterations)
    return torch.stack(kept)


def _times(delta: Tensor, kind: Amount, chains: Chains) -> Tensor:
    """tau = D^alpha of every gate, by way of log D as in `FractionalHeat`: a closed gate has no gradient at all."""
    log_strength, closed = kind.log(delta)
    tau = torch.exp(chains.alpha[chains.chain] * log_strength)
    return tau if closed is None else torch.where(closed, 0.0, tau)


def even_share(time: float, gates: int, alpha: float) -> float:
    """Return the D of each of `gates` gates that share a total time evenly, (time / gates)^(1 / alpha) (eq. 14)."""
    return float((time / gates) ** (1 / alpha))


def penalties(time: float, gates: int, alpha: float) -> dict[str, float]:
    """Return sum D^2 of a total time shared evenly, and of all of it at one gate (Remark 3).

    Their ratio is gates^(1 - 2 / alpha): sharing is cheaper for every alpha < 2.
    """
    return {
        "even": gates * even_share(time, gates, alpha) ** 2,
        "concentrated": even_share(time, 1, alpha) ** 2,
    }
