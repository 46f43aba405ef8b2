"""Theorem 1 as a tool: gates on one grid with one order compose into a single gate."""

import copy
from collections.abc import Sequence
from typing import TypeVar

from torch import nn

from fheat.ops.heat import FractionalHeat

Network = TypeVar("Network", bound=nn.Module)


def compose(gates: Sequence[FractionalHeat], *, tolerance: float = 1e-6) -> FractionalHeat:
    """Return the one gate that equals applying all of `gates` in turn.

        T_tau1 T_tau2 = T_(tau1 + tau2),    D = (sum_i D_i^alpha)^(1/alpha)

    Closed gates add nothing and may have any alpha; the alphas of open gates must agree to `tolerance`. Identity case:
    if all are closed, so is the result.
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
    Only containers that run their layers in order are touched; gates of FHEAT-Seg are separated by normalisation and
    products and are left alone, and so are runs whose open gates differ in alpha.
    """
    copied = copy.deepcopy(model)
    for container in copied.modules():
        if isinstance(container, nn.Sequential) and type(container).forward is nn.Sequential.forward:
            _merge_runs(container, tolerance)
    return copied


def _merge_runs(layers: nn.Sequential, tolerance: float) -> None:
    first = 0  # where the current run of gates starts
    for place in range(1, len(layers)):
        pair = [gate for gate in (layers[first], layers[place]) if isinstance(gate, FractionalHeat)]
        if len(pair) == 2 and _obstacle(pair, tolerance) is None:
            layers[first] = compose(pair, tolerance=tolerance)
            layers[place] = nn.Identity()
        else:
            first = place


def _obstacle(gates: Sequence[FractionalHeat], tolerance: float) -> str | None:
    """Say why these gates do not compose, or None."""
    if not gates:
        return "gates is empty: give at least one FractionalHeat"
    grids = {(gate.dims, gate.size) for gate in gates}
    if len(grids) > 1:
        return f"gates act on different grids, (dims, size) = {sorted(map(str, grids))}: times add on one grid only"
    alphas = [gate.alpha.item() for gate in gates if not gate.closed]
    if alphas and max(alphas) - min(alphas) > tolerance:
        return f"gates have alpha from {min(alphas):.6g} to {max(alphas):.6g}: times add for one alpha only"
    if alphas and not any(gate.strength.item() for gate in gates):
        return "gates have strengths that underflow to zero without being closed: there is nothing to add"
    return None
