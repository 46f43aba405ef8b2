"""Two exclusive classes need one logit: half the output of a network, to write, to read and to add up."""

import copy
from typing import Final, cast

from torch import nn

from fheat.networks.fheat_seg import FHEATSeg
from fheat.networks.light_unetr import LightUNETR
from fheat.nn.convolutions import PatchTransposed3d
from fheat.nn.layers import untouched

KNOWN: Final = (FHEATSeg, LightUNETR)
"""Networks that are known to return what their last layer does, cropped."""
LARGEST_WEIGHT: Final = 1e18
"""Largest weight of a last layer whose logits are not infinite, as what enters it comes from norms."""


def one_logit(network: nn.Module) -> nn.Module | None:
    """Return a network with the output l_1 - l_0, (N, 1, X, Y, Z), of one with the logits l_0 and l_1 of two classes.

        softmax(l)_1 = sigmoid(l_1 - l_0),    softmax(l)_0 = 1 - softmax(l)_1

    The difference is in the weights of the last layer, the others are shared. None where the network has other than two
    outputs, is none of `KNOWN` or has a forward pass of its own, which may do anything with the logits, or where its
    last layer has weights with which both logits could be infinite and their difference not.
    """
    own = not any(untouched(network, known) for known in KNOWN) or "forward_features" in vars(network)
    if own or not untouched(head := cast(PatchTransposed3d, network.head), PatchTransposed3d):
        return None
    if head.out_channels != 2 or any(value.abs().max() > LARGEST_WEIGHT for value in head.parameters()):
        return None
    difference = copy.copy(head)
    difference.out_channels = 1
    weight, bias = head.weight.detach(), head.bias
    difference._parameters = {
        "weight": nn.Parameter(weight[:, 1:] - weight[:, :1]),
        "bias": None if bias is None else nn.Parameter(bias.detach().diff()),
    }
    one = copy.copy(network)
    one._modules = {**network._modules, "head": difference}
    return one
