"""Two exclusive classes need one logit: half the output of a network, to write, to read and to add up."""

import copy
from typing import Final, cast

from torch import nn

from fheat.networks.light_u import LightU
from fheat.nn.convolutions import PatchTransposed3d
from fheat.nn.layers import has_hooks, untouched

LARGEST: Final = 1e18
"""Largest weight of a last layer whose logits are not infinite, as what enters it comes from norms."""


def one_logit(network: nn.Module) -> nn.Module | None:
    """Return a network with the output l_1 - l_0, (N, 1, X, Y, Z), of one with the logits l_0 and l_1 of two classes.

        softmax(l)_1 = sigmoid(l_1 - l_0),    softmax(l)_0 = 1 - softmax(l)_1

    The difference is in the weights of the last layer, the others are shared. None where the network has other than two
    outputs, does not end in a layer that is known here, or has weights there with which both logits could be infinite
    and their difference not.
    """
    if not isinstance(network, LightU) or has_hooks(network) or not untouched(network.head, PatchTransposed3d):
        return None
    if network.head.out_channels != 2 or any(value.abs().max() > LARGEST for value in network.head.parameters()):
        return None
    head = copy.copy(network.head)
    head.out_channels = 1
    weight, bias = network.head.weight.detach(), network.head.bias
    head._parameters = {
        "weight": nn.Parameter(weight[:, 1:] - weight[:, :1]),
        "bias": None if bias is None else nn.Parameter(bias.detach().diff()),
    }
    one = copy.copy(network)
    one._modules = {**network._modules, "head": head}
    return cast(nn.Module, one)
