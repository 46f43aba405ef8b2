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
        return copy.deepcopy(gates[0])
    merged = copy.deepcopy(open_gates[0])
    alpha = merged.alpha.item()
    tau = sum(gate.strength.item() ** alpha for gate in open_gates)
    merged.set_strength(tau ** (1 / alpha))
    return merged


def merge(model: Network, *, tolerance: float = 1e-6) -> Network:
    """Return a copy in which gates that follow each other directly in an `nn.Sequential` are one gate.

    Only there does the structure prove that nothing stands between them; gates of FHEAT-Seg are separated by
    normalisation and products and are left alone. Runs whose open gates differ in alpha are left alone as well.
    """
    copied = copy.deepcopy(model)
    for container in [module for module in copied.modules() if isinstance(module, nn.Sequential)]:
        kept: list[nn.Module] = []
        for layer in container:
            last = kept[-1] if kept else None
            pair = [gate for gate in (last, layer) if isinstance(gate, FractionalHeat)]
            if len(pair) == 2 and _obstacle(pair, tolerance) is None:
                kept[-1] = compose(pair, tolerance=tolerance)
            else:
                kept.append(layer)
        if len(kept) < len(container):
            for name in list(container._modules):
                del container._modules[name]
            container.extend(kept)
    return copied


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
    return None
