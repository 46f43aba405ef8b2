"""Operators that mix all voxels at the sites of a network: the heat gate, and those that it is compared with.

| operator | what it does | exact identity |
|---|---|---|
| `heat` | exp(-tau r^alpha) on the cosine spectrum | D = 0, absorbing: training locks it |
| `resolvent` | 1 / (1 + tau r^alpha) on the cosine spectrum | D = 0, absorbing: training locks it |
| `l0` | the heat operator behind a hard-concrete switch | switch off at evaluation; training may turn it on again |
| `stochastic_depth` | the heat operator, skipped at random in training | none at evaluation |
| `fnet` | real part of the Fourier transform | none |
| `gfnet` | a free complex filter for each channel | one point among all filters, up to rounding |
| `afno` | a small network on the Fourier spectrum, added to the input | depends on the scan |
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from fheat.networks.base import Alpha, Gates, initial_theta, learnable_sites
from fheat.nn.afno import AFNO3D
from fheat.nn.fnet import FNet3D
from fheat.nn.gfnet import GFNet3D
from fheat.ops.hard_concrete import HardConcreteHeat
from fheat.ops.heat import FractionalHeat
from fheat.ops.resolvent import TikhonovResolvent
from fheat.ops.stochastic_depth import StochasticDepthHeat

Operator = Literal["heat", "resolvent", "l0", "stochastic_depth", "fnet", "gfnet", "afno"]
WITHOUT_ORDER = ("fnet", "gfnet", "afno")
"""Operators that have no alpha."""


class Place(NamedTuple):
    """The channels and, for inputs of the patch size, the grid of a site."""

    channels: int
    grid: tuple[int, ...]


def build_operators(
    places: Mapping[str, Place],
    operator: Operator,
    gates: Gates,
    *,
    alpha: Alpha = "bounded",
    initial_alpha: float | None = None,
    l0_weight: float | None = None,
    drop: float | None = None,
) -> dict[str, nn.Module]:
    """Return one operator per site, in the order of `places`; the last site is the final decoder stage.

    `gates` says which sites have it, as in `fheat.networks.base.build_gates`; the others have a gate that is frozen at
    the identity. Random weights of operators do not move torch's generator on, so the rest of a network starts with
    the same weights whatever the operator is.

    Args:
        places: channels and grid of each site.
        operator: one of the names above.
        gates: `learnable`, `closed`, `final_only`, or a list of sites.
        alpha, initial_alpha: order of the operators that have one.
        l0_weight: weight of the penalty of `l0`; 0.0001 if None.
        drop: probability with which `stochastic_depth` skips a site in training; 0.2 if None.
    """
    if operator not in get_args(Operator):
        raise ValueError(f"operator={operator!r} is unknown: use {', '.join(get_args(Operator))}")
    for name, value, owner in (("l0_weight", l0_weight, "l0"), ("drop", drop, "stochastic_depth")):
        if value is not None and operator != owner:
            raise ValueError(f"{name} is for operator {owner!r}, not {operator!r}: leave it out")
    if operator in WITHOUT_ORDER and (alpha != "bounded" or initial_alpha is not None):
        raise ValueError(f"operator {operator!r} has no order: leave out alpha and initial_alpha")
    heat: dict[str, Any] = {"alpha": alpha, "initial_theta": initial_theta(alpha, initial_alpha)}
    build: dict[str, Callable[[Place], nn.Module]] = {
        "heat": lambda place: FractionalHeat(**heat),
        "resolvent": lambda place: TikhonovResolvent(**heat),
        "l0": lambda place: HardConcreteHeat(**heat, **_given(weight=l0_weight)),
        "stochastic_depth": lambda place: StochasticDepthHeat(**heat, **_given(drop=drop)),
        "fnet": lambda place: FNet3D(),
        "gfnet": lambda place: GFNet3D(place.channels, place.grid),
        "afno": lambda place: AFNO3D(place.channels),
    }
    chosen = learnable_sites(list(places), gates)
    with torch.random.fork_rng(devices=[]):
        return {
            site: build[operator](place) if site in chosen else FractionalHeat(**heat, strength=0.0)
            for site, place in places.items()
        }


def _given(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
