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

    A closed gate returns a copy, a retired one the tensor itself, so an in-place operation behind it would now write
    into what stands before it: `inplace` flags of modules are cleared in the copy. In-place code in a `forward` of your
    own, directly on the output of a gate, is the one thing that must not be there.
    """
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if getattr(module, "inplace", None) is True:
            module.inplace = False  # type: ignore[assignment]
    for gate in gates_of(copied).values():
        if gate.closed:
            gate.retire()
    return copied
