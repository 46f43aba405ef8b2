"""Several trained networks as one, which averages their probabilities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fheat.models.card import Card
from fheat.models.folder import load
from fheat.networks.registry import NetworkSpec
from fheat.system.errors import BadInput

ALIKE = ("classes", "regions", "preprocessing", "window")
"""Fields of the model cards that must agree: what comes out, and how a scan becomes the input."""


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


def load_ensemble(sources: Sequence[str | Path]) -> nn.Module:
    """Load one network, or several as an `Ensemble` with the facts of the first, or raise `BadInput`."""
    if len(sources) == 1:
        return load(sources[0])
    networks: list[Any] = [load(source) for source in sources]
    first = networks[0]
    for source, network in zip(sources, networks, strict=True):
        for field in ALIKE:
            own, other = (getattr(one.card, field) for one in (network, first))
            if own != other:
                reason = f"has another {field} than {sources[0]} ({_shown(own)}, not {_shown(other)})"
                raise BadInput(source, reason, "average networks that were trained for the same task on the same grid")
        if (network.spec.in_channels, network.spec.patch_size) != (first.spec.in_channels, first.spec.patch_size):
            reason = f"takes other channels or windows than {sources[0]}"
            raise BadInput(source, reason, "average networks that take the same input")
    ensemble = Ensemble(networks, regions=bool(first.card.regions))
    ensemble.card, ensemble.spec = _common_card(networks), first.spec
    return ensemble


def _common_card(networks: Sequence[Any]) -> Card:
    card: Card = networks[0].card
    titles = dict.fromkeys(network.card.title for network in networks)
    return card.model_copy(update={"title": f"mean of {len(networks)} networks ({'; '.join(titles)})", "metrics": {}})


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
