r"""What a gate sees in one forward and one backward pass: the spectra of its feature and of its gradient, in sums.

With v what enters a gate, z = T(v) what leaves it, g = dL/dz, hats for orthonormal cosine transforms and m for the
multiplier, which is 1 where the gate is closed,

.. math::  -\partial L / \partial\tau = \sum_k r^\alpha \, m(k) \, \hat v(k) \, \hat g(k).

The sum runs over all channels and samples, and over all calls of a gate that several blocks share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fheat.gates.sites import device_of
from fheat.ops.dct import dct
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat, frequency_radius

Loss = Callable[[Any, Any], Tensor]
"""(network, batch) -> a scalar; it uses the network it is given."""


@dataclass(frozen=True)
class Sums:
    """Of one gate in one pass: `slope` is -dL/dtau; `arriving` and `leaving` are the squared norms of g^ and m g^,
    both without the constant mode. A gate the loss does not reach has zeros."""

    slope: float = 0.0
    arriving: float = 0.0
    leaving: float = 0.0
    reached: bool = False


@dataclass(frozen=True)
class _Call:
    """One call of a gate: C v, taken at once since a later layer may write into v, and where g will arrive."""

    spectrum: Tensor
    output: GradientEdge


def measure(network: nn.Module, loss_fn: Loss, batch: Any) -> dict[str, Sums]:
    """Return the sums of every gate for one batch, by site. Hooks stay in the network, so give a copy.

    No gradient is left in any tensor. Raises `ValueError` where the loss is no finite scalar.
    """
    calls = {site: _listen(gate) for site, gate in gates_of(network).items()}
    loss = loss_fn(network, batch)
    _check(loss)
    heard = {site: list(found) for site, found in calls.items()}
    edges = [call.output for found in heard.values() for call in found]
    gradients: list[Tensor | None] = [None] * len(edges)
    if edges and loss.requires_grad:
        with torch.autocast(device_of(network).type, enabled=False):  # what runs backward has its dtypes already
            gradients = list(torch.autograd.grad(loss.sum(), edges, allow_unused=True))
    arrived = iter(gradients)
    return {
        site: _total(gate, [(call.spectrum, g) for call in heard[site] if (g := next(arrived)) is not None])
        for site, gate in gates_of(network).items()
    }


def _listen(gate: FractionalHeat) -> list[_Call]:
    """Return a list that every call of the gate with gradients adds itself to."""
    calls: list[_Call] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        spectrum = dct((inputs[0] if inputs else named["x"]).detach(), dims=gate.dims, transform=gate.transform)
        # A closed gate may return its input itself, which has gradients from elsewhere: z is a tensor of its own.
        z = (output if output.requires_grad else output.detach().requires_grad_()).clone()
        calls.append(_Call(spectrum, get_gradient_edge(z)))
        return z

    gate.register_forward_hook(record, with_kwargs=True)
    return calls


def _check(loss: Tensor) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        shown = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
        raise ValueError(f"the loss {shown}: loss_fn must return one number as a floating tensor")
    if not torch.isfinite(loss).all():
        raise ValueError(f"the loss is {loss.item()}: probe a network and a batch whose loss is finite")


@torch.no_grad()
def _total(gate: FractionalHeat, heard: list[tuple[Tensor, Tensor]]) -> Sums:
    """Add up the calls of one gate, in float64. Shapes: spectra of v and gradients g, both (..., *grid)."""
    slope = arriving = leaving = 0.0
    alpha = gate.alpha.item()
    for v_hat, g in heard:
        g_hat = dct(g, dims=gate.dims, transform=gate.transform)
        grid = tuple(g_hat.shape[-gate.dims :])
        cross, energy = ((g_hat * other).reshape(-1, *grid).sum(dim=0, dtype=torch.float64) for other in (v_hat, g_hat))
        radius = torch.from_numpy(frequency_radius(*grid)).to(cross.device)
        response = gate.response(grid, g_hat)
        m = torch.ones_like(radius) if response is None else response[0].double()
        away = radius > 0
        slope += (radius**alpha * m * cross)[away].sum().item()
        arriving += energy[away].sum().item()
        leaving += (m.square() * energy)[away].sum().item()
    return Sums(slope, arriving, leaving, reached=bool(heard))
