"""Copies of a network with fewer gates and the same outputs: closed gates retired, consecutive gates merged."""

import copy
from collections.abc import Sequence
from typing import TypeVar

from torch import nn

from fheat.gates.hook import detach
from fheat.ops.gates import gates_of, take_out
from fheat.ops.heat import FractionalHeat
from fheat.ops.spectral_mixer import SpectralMixer

Network = TypeVar("Network", bound=nn.Module)


def retire(model: Network) -> Network:
    """Return a copy of any network in which every closed gate is gone from the graph.

    The copy is exact in evaluation mode: a closed gate already returns its input bit for bit, so
    `torch.equal(retire(model)(x), model(x))`. Retired gates have no parameters and no operations; they stay visible in
    `fheat.allocation`. Open gates are untouched. A gate whose strength is `softplus` or `exp` is never closed and so
    never retired, and neither are the spectral mixers that may stand in the place of gates. A gate of
    `fheat.instrument` loses its hook as well, which restores the network it was put into.

    A `forward` of your own must not write in place into the output of a gate (`gate(x).add_(1)`), because a retired
    gate returns the tensor itself. In-place layers beside a gate, such as `nn.ReLU(inplace=True)`, are handled.
    """
    return retire_in_place(copy.deepcopy(model))


def retire_in_place(model: Network) -> Network:
    """Take every closed gate out of a network that nobody else holds, and return it; see `retire`."""
    for gate in gates_of(model).values():
        if gate.closed:
            remove_gate(model, gate, gate.alpha.item())
    return model


def remove_gate(model: nn.Module, gate: FractionalHeat | SpectralMixer, alpha: float) -> None:
    """Bypass a closed gate, or a mixer in the place of one, and remove the hook of an instrumented gate."""
    if isinstance(gate, FractionalHeat) and detach(model, gate):
        # the network ran without this gate before, in-place layers included
        gate.bypass(alpha)
    else:
        take_out(model, gate, alpha)


def compose(gates: Sequence[FractionalHeat], *, tolerance: float = 1e-6) -> FractionalHeat:
    """Return the one gate that equals applying all of `gates` in turn.

        T_tau1 T_tau2 = T_(tau1 + tau2),    D = (sum_i D_i^alpha)^(1/alpha)

    Closed gates add nothing and may have any alpha; the alphas of open gates must agree within `tolerance`. Identity
    case: if all gates are closed, so is the result.
    """
    reason = _obstacle(gates, tolerance)
    if reason is not None:
        raise ValueError(reason)
    open_gates = [gate for gate in gates if not gate.closed]
    if not open_gates:
        learned = [gate for gate in gates if gate.delta is not None]
        return copy.deepcopy((learned or list(gates))[0])
    merged = copy.deepcopy(open_gates[0])
    alpha = merged.alpha.item()
    tau = sum(gate.strength.item() ** alpha for gate in open_gates)
    merged.set_strength(tau ** (1 / alpha))
    return merged


def merge(model: Network, *, tolerance: float = 1e-6) -> Network:
    """Return a copy in which gates that follow each other directly in an `nn.Sequential` are one gate.

    The merged gate takes the place of the first, `nn.Identity` the places of the others, so paths and indices stay.
    Only containers that run their layers in order are changed. Gates of FHEAT-Seg are separated by normalisation and
    products and stay as they are, and so do consecutive gates whose open ones differ in alpha.
    """
    copied = copy.deepcopy(model)
    for container in copied.modules():
        if isinstance(container, nn.Sequential) and type(container).forward is nn.Sequential.forward:
            _merge_consecutive(container, tolerance)
    return copied


def _merge_consecutive(layers: nn.Sequential, tolerance: float) -> None:
    first = 0  # where the current sequence of gates starts
    for place in range(1, len(layers)):
        pair = [gate for gate in (layers[first], layers[place]) if isinstance(gate, FractionalHeat)]
        if len(pair) == 2 and _obstacle(pair, tolerance) is None:
            layers[first] = compose(pair, tolerance=tolerance)
            layers[place] = nn.Identity()
        else:
            first = place


def _obstacle(gates: Sequence[FractionalHeat], tolerance: float) -> str | None:
    """Return the reason why these gates cannot be composed, or None where they can."""
    if not gates:
        return "gates is empty: give at least one FractionalHeat"
    others = [type(gate).__name__ for gate in gates if type(gate) is not FractionalHeat]
    if others:
        return f"gates include a {others[0]}: times add for FractionalHeat only"
    grids = {(gate.dims, gate.size) for gate in gates}
    if len(grids) > 1:
        return f"gates act on different grids, (dims, size) = {sorted(map(str, grids))}: times add on one grid only"
    alphas = [gate.alpha.item() for gate in gates if not gate.closed]
    if alphas and max(alphas) - min(alphas) > tolerance:
        return f"gates have alpha from {min(alphas):.6g} to {max(alphas):.6g}: times add for one alpha only"
    if alphas and not any(gate.strength.item() for gate in gates):
        return "gates have strengths that underflow to zero without being closed: there is nothing to add"
    return None
