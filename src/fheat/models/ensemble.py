"""Several trained networks as one, which averages their probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from fheat.data.preprocessing import Intensity
from fheat.models.card import Card
from fheat.models.folder import load
from fheat.models.zoo import networks_of
from fheat.networks.registry import NetworkSpec
from fheat.system.errors import BadInput

_LONGEST: Final = 48
"""Largest number of characters with which a refusal shows what one network has."""


class Ensemble(nn.Module):
    """The logits of the mean probability of several networks.

    For exclusive classes log(mean_i softmax(z_i)), so that its softmax is the mean; for nested regions the logit of
    mean_i sigmoid(z_i). A single network gives its own probabilities. Shapes are those of the networks; with `every`
    set, the logits of each network come behind those of the mean, along the channels.
    """

    def __init__(self, networks: Sequence[nn.Module], *, regions: bool = False) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.regions = regions
        self.every = False
        self.card: Card
        self.spec: NetworkSpec

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the mean probability, float32, and with `every` those of all networks behind them."""
        every = [network(x).float() for network in self.networks]
        mean = self._mean(every)
        return torch.cat([mean, *every], dim=1) if self.every else mean

    def _mean(self, every: Sequence[Tensor]) -> Tensor:
        least = torch.finfo(torch.float32).tiny
        if self.regions:
            inside, outside = (
                torch.stack([(sign * logits).sigmoid() for logits in every]).mean(dim=0).clamp(min=least)
                for sign in (1, -1)
            )
            return inside.log() - outside.log()
        return torch.stack([logits.softmax(dim=1) for logits in every]).mean(dim=0).clamp(min=least).log()


def sources_of(model: nn.Module | str | Path | Sequence[str | Path]) -> tuple[str | Path, ...]:
    """Return the folders and names of the networks that a model stands for, see `networks_of`; none for a network."""
    given = () if isinstance(model, nn.Module) else (model,) if isinstance(model, str | Path) else tuple(model)
    return tuple(source for one in given for source in networks_of(one))


def load_ensemble(sources: Sequence[str | Path]) -> nn.Module:
    """Load one network, or several as an `Ensemble` with the facts of the first, or raise `BadInput`."""
    if len(sources) == 1:
        return load(sources[0])
    networks: list[Any] = [load(source) for source in sources]
    first = networks[0]
    for source, network in zip(sources, networks, strict=True):
        for fact in _ALIKE:
            own, other = (fact.of(one.card, one.spec) for one in (network, first))
            if own != other:
                here, there = _told_apart(fact, own, other)
                reason = f"has {fact.name} than {sources[0]}: {here}, not {there}"
                raise BadInput(source, reason, f"average networks that {fact.common}")
    ensemble = Ensemble(networks, regions=bool(first.card.regions))
    ensemble.card, ensemble.spec = _common_card(networks), first.spec
    return ensemble


def _common_card(networks: Sequence[Any]) -> Card:
    card: Card = networks[0].card
    titles = dict.fromkeys(network.card.title for network in networks)
    return card.model_copy(update={"title": f"mean of {len(networks)} networks ({'; '.join(titles)})", "metrics": {}})


@dataclass(frozen=True)
class _Fact:
    """Something in which networks must agree to be averaged: what comes out, and how a scan becomes the input."""

    name: str
    """How a network that differs is told of: `another spacing`."""
    common: str
    """Words for what the networks of an ensemble have in common: `segment the same`."""
    of: Callable[[Card, NetworkSpec], Any]
    shown: Callable[[Any], str] = str


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def _lengths(values: Sequence[float] | None) -> str:
    return "none" if values is None else " x ".join(f"{length:.4g}" for length in values)


def _millimetres(spacing: Sequence[float] | None) -> str:
    return "that of each scan" if spacing is None else f"{_lengths(spacing)} mm"


def _mapping(intensity: Intensity) -> str:
    if intensity.low is not None and intensity.high is not None:
        return f"window {intensity.low:g} to {intensity.high:g}"
    return f"{intensity.kind}_nonzero" if intensity.nonzero else intensity.kind


def _told_apart(fact: _Fact, own: Any, other: Any) -> tuple[str, str]:
    """Return two values that differ as texts that differ and are short: of long lists, where they begin to differ."""
    here, there = fact.shown(own), fact.shown(other)
    if here == there:  # once rounded
        here, there = str(own), str(other)
    if max(len(here), len(there)) > _LONGEST and isinstance(own, tuple) and isinstance(other, tuple):
        if len(own) != len(other):
            return f"{len(own)} of them", str(len(other))
        here, there = next((str(one), str(two)) for one, two in zip(own, other, strict=True) if one != two)
    return here[:_LONGEST], there[:_LONGEST]


_SAME_TASK: Final = "segment the same"
_ALIKE: Final = (
    _Fact("other classes", _SAME_TASK, lambda card, spec: card.classes, _listed),
    _Fact("other regions", _SAME_TASK, lambda card, spec: card.regions, _listed),
    _Fact("another number of output channels", _SAME_TASK, lambda card, spec: spec.out_channels),
    _Fact("another number of input channels", "take the same scans", lambda card, spec: spec.in_channels),
    _Fact(
        "another spacing",
        "were trained with one --spacing",
        lambda card, spec: card.preprocessing.spacing,
        _millimetres,
    ),
    _Fact(
        "another orientation",
        "were trained with one --preprocessing.orientation",
        lambda card, spec: card.preprocessing.orientation or "that of each scan",
    ),
    _Fact(
        "another tolerance of the spacing",
        "were trained with one --preprocessing.tolerance",
        lambda card, spec: card.preprocessing.tolerance,
    ),
    _Fact(
        "other intensities",
        "were trained with one --intensity",
        lambda card, spec: card.preprocessing.intensity,
        _mapping,
    ),
    _Fact("another patch", "were trained with one --patch-size", lambda card, spec: spec.patch_size, _lengths),
    _Fact(
        "other windows",
        "were trained with one --patch-size",
        lambda card, spec: None if card.window is None else card.window.size,
        _lengths,
    ),
    _Fact(
        "another window stride",
        "were validated with one --validation.stride",
        lambda card, spec: None if card.window is None else card.window.stride,
        _lengths,
    ),
)
