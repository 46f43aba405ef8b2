"""Compile closed gates away."""

import copy
from typing import TypeVar

from torch import nn

from fheat.ops.gates import gates_of

Network = TypeVar("Network", bound=nn.Module)


def retire(model: Network) -> Network:
    """Return a copy of any network in which every closed gate is gone from the graph.

    Exact: a closed gate already returns its input bit for bit, so `torch.equal(retire(model)(x), model(x))`. Retired
    gates have no parameters and no operations; they stay visible in `fheat.allocation`. Open gates are untouched. A
    gate whose strength is `softplus` or `exp` is never closed and so never retired.
    """
    copied = copy.deepcopy(model)
    for gate in gates_of(copied).values():
        if gate.closed:
            gate.retire()
    return copied
