"""How unsure a prediction is, voxel by voxel, from 0 to 1: entropy of probabilities, or disagreement of members.

A member is one network of an ensemble on one mirror image of every window; eight flips of three networks make 24.
"""

from collections.abc import Sequence
from math import log
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fheat.inference.postprocessing import Measure, paint
from fheat.models.ensemble import Ensemble

UncertaintyKind = Literal["entropy", "disagreement"]
"""Measure of uncertainty."""


def groups_of(network: nn.Module, uncertainty: UncertaintyKind | None, *, flips: bool) -> int:
    """Return how many predictions the network gives at once; for disagreement an ensemble gives those of its networks.

    Raises `ValueError` of one line for a measure that is unknown, or that there are no members for.
    """
    if uncertainty not in (None, *get_args(UncertaintyKind)):
        raise ValueError(f"uncertainty={uncertainty!r} is unknown: use {' or '.join(get_args(UncertaintyKind))}")
    networks = len(network.networks) if isinstance(network, Ensemble) else 1
    if isinstance(network, Ensemble):
        network.every = uncertainty == "disagreement" and networks > 1  # whatever it was before
    if uncertainty != "disagreement":
        return 1
    if networks > 1:
        return 1 + networks
    if not flips:
        raise ValueError("disagreement needs members that can disagree: add --flips, or give several models")
    return 1


def measure_of(uncertainty: UncertaintyKind | None, regions: Sequence[int] = ()) -> Measure | None:
    """Return the function that `Restorer` measures the uncertainty with, or None where none is wanted."""
    if uncertainty == "entropy":
        return lambda mean, members: entropy(mean, regions)
    return None if uncertainty is None else lambda mean, members: disagreement(members, mean, regions)


def entropy(probabilities: Tensor, regions: Sequence[int] = ()) -> Tensor:
    """Return the entropy of probabilities (K, X, Y, Z) over its largest value, (X, Y, Z).

        exclusive classes:  -sum_k p_k log p_k / log K
        regions:            max_k -(p_k log p_k + (1 - p_k) log(1 - p_k)) / log 2

    It is 0 where one class is certain and 1 where all are equally probable. With regions, whose channels are decided
    one by one, it is that of the least certain region. A single exclusive class is always certain.
    """
    if regions:
        outside = 1 - probabilities
        terms: Tensor = torch.special.entr(probabilities) + torch.special.entr(outside)
        return (terms.amax(dim=0) / log(2)).clamp(0, 1)
    if len(probabilities) == 1:
        return torch.zeros_like(probabilities[0])
    spread: Tensor = torch.special.entr(probabilities).sum(dim=0) / log(len(probabilities))
    return spread.clamp(0, 1)


def disagreement(members: Tensor, probabilities: Tensor, regions: Sequence[int] = ()) -> Tensor:
    """Return the fraction of the members whose label differs from that of the mean, (X, Y, Z).

    Shapes: members (J, K, X, Y, Z), mean probabilities (K, X, Y, Z). It is 0 where all members have the label of the
    mean.
    """
    label = paint(probabilities, regions)
    differing = torch.zeros(label.shape, dtype=torch.float32, device=label.device)
    for member in members:
        differing += paint(member, regions) != label
    return differing / len(members)
