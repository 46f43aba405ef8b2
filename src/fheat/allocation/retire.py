"""Compile closed gates away."""

import copy
from typing import TypeVar

from torch import nn

from fheat.allocation.hook import detach
from fheat.ops.gates import gates_of, take_out

Network = TypeVar("Network", bound=nn.Module)


def retire(model: Network) -> Network:
    """Return a copy of any network in which every closed gate is gone from the graph.

    Exact in evaluation mode: a closed gate already returns its input bit for bit, so
    `torch.equal(retire(model)(x), model(x))`. Retired gates have no parameters and no operations; they stay visible in
    `fheat.allocation`. Open gates are untouched. A gate whose strength is `softplus` or `exp` is never closed and so
    never retired. A gate of `fheat.instrument` loses its hook as well, so that the network it was put into is back.

    One thing a `forward` of your own must not do is write in place into the output of a gate (`gate(x).add_(1)`): a
    retired gate returns the tensor itself. In-place layers beside a gate, such as `nn.ReLU(inplace=True)`, are taken
    care of.
    """
    copied = copy.deepcopy(model)
    for gate in gates_of(copied).values():
        if gate.closed:
            alpha = gate.alpha.item()
            if detach(copied, gate):  # the network ran without it before, in-place layers and all
                gate.bypass(alpha)
            else:
                take_out(copied, gate, alpha)
    return copied
