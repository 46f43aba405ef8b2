r"""How the loss depends on each gate of a network: gradients measured in one forward and one backward pass.

Let v be the input of a gate, z = T(v) its output and g = dL/dz the gradient that arrives there. With hats for
orthonormal cosine transforms and m for the multiplier of the gate, which is 1 where the gate is closed,

.. math::  -\partial L / \partial\tau = \sum_k r^\alpha \, m(k) \, \hat v(k) \, \hat g(k).

A gate with another multiplier has its own slope -(dm / dtau) / r^alpha in the place of m, `FractionalHeat.tau_slope`.
The sum runs over all channels and samples, and over all calls of a gate that several blocks share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fheat.gates.dry_run import device_of
from fheat.ops.dct import dct
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat, frequency_radius

Loss = Callable[[Any, Any], Tensor]
"""A function (network, batch) -> scalar that uses the network it is given."""


@dataclass(frozen=True)
class GateGradient:
    """Numbers that one pass measured at one gate. All are 0 where the loss does not depend on the gate."""

    negative_gradient: float = 0.0
    """-dL/dtau."""
    arriving: float = 0.0
    """Squared norm of g^ without the constant mode: the gradient that arrives at the output of the gate."""
    leaving: float = 0.0
    """Squared norm of m g^ without the constant mode: the gradient that the gate passes on to its input."""
    reached: bool = False
    """Whether the loss depends on the gate."""


@dataclass(frozen=True)
class _Call:
    """One call of a gate: the spectrum of v, and the place in the graph where g will arrive.

    The spectrum is computed during the call because a later layer may write into v.
    """

    spectrum: Tensor
    output: GradientEdge


def gate_gradients(network: nn.Module, loss_fn: Loss, batch: Any) -> dict[str, GateGradient]:
    """Return what one batch gives at every gate, by site. Hooks stay in the network, so give a copy.

    No gradient is left in any tensor. Raises `ValueError` where the loss is no finite scalar.
    """
    recorded = {site: _record_calls(gate) for site, gate in gates_of(network).items()}
    loss = loss_fn(network, batch)
    _check(loss)
    calls = {site: list(of_site) for site, of_site in recorded.items()}
    edges = [call.output for of_site in calls.values() for call in of_site]
    gradients: list[Tensor | None] = [None] * len(edges)
    if edges and loss.requires_grad:
        with torch.autocast(device_of(network).type, enabled=False):  # the backward pass has its dtypes already
            gradients = list(torch.autograd.grad(loss.sum(), edges, allow_unused=True))
    arrived = iter(gradients)
    return {
        site: _added_up(gate, [(call.spectrum, g) for call in calls[site] if (g := next(arrived)) is not None])
        for site, gate in gates_of(network).items()
    }


def _record_calls(gate: FractionalHeat) -> list[_Call]:
    """Add a hook and return the list that every later call of the gate with gradients enabled is added to."""
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
def _added_up(gate: FractionalHeat, calls: list[tuple[Tensor, Tensor]]) -> GateGradient:
    """Add up the calls of one gate, in float64. A call is the spectrum of v and the gradient g, both (..., *grid)."""
    negative_gradient = arriving = leaving = 0.0
    alpha = gate.alpha.item()
    for v_hat, g in calls:
        g_hat = dct(g, dims=gate.dims, transform=gate.transform)
        grid = tuple(g_hat.shape[-gate.dims :])
        cross, energy = ((g_hat * other).reshape(-1, *grid).sum(dim=0, dtype=torch.float64) for other in (v_hat, g_hat))
        radius = torch.from_numpy(frequency_radius(*grid)).to(cross.device)
        response = gate.response(grid, g_hat)
        m = torch.ones_like(radius) if response is None else response[0].double()
        slope = m if response is None else gate.tau_slope(m)
        not_constant = radius > 0
        negative_gradient += (radius**alpha * slope * cross)[not_constant].sum().item()
        arriving += energy[not_constant].sum().item()
        leaving += (m.square() * energy)[not_constant].sum().item()
    return GateGradient(negative_gradient, arriving, leaving, reached=bool(calls))
