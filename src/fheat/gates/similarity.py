"""How much each site of a network changes what it is given, and a copy without the sites that change it least.

This is the idea of post-hoc pruning by similarity between layers (Hong et al., *SlimFormer-3D*, MICCAI 2025): a site
whose output looks like its input is left out after training. Unlike `fheat.retire` it changes the outputs of the
network, so its price has to be measured.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from fheat.gates.retire import remove_gate
from fheat.ops.gates import operators_of
from fheat.ops.heat import FractionalHeat
from fheat.ops.spectral_mixer import SpectralMixer

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Similarity:
    """How like its input x the output y of a site is, over everything that passed through it."""

    cosine: float
    """Mean over samples and calls of <x, y> / (|x| |y|); 1 for the identity and for any change of scale."""
    distance: float
    """Relative distance from the identity, sqrt(sum |y - x|^2 / sum |x|^2); 0 for the identity."""
    unchanged: bool
    """Whether y was x bit for bit, every time."""
    samples: int
    """Number of samples that passed, over all calls."""

    @property
    def angle(self) -> float:
        """Angular distance, arccos(cosine) / pi, from 0 for the identity to 1."""
        return math.acos(min(max(self.cosine, -1.0), 1.0)) / math.pi


@dataclass
class _Sums:
    cosine: float = 0.0
    changed: float = 0.0
    size: float = 0.0
    unchanged: bool = True
    samples: int = 0

    def add(self, x: Tensor, y: Tensor) -> None:
        before, after = (value.detach().flatten(1).double() for value in (x, y))
        sizes = before.norm(dim=1) * after.norm(dim=1)
        # Two zeros are alike, and a zero beside something else is not.
        alike = torch.where(sizes > 0, (before * after).sum(1) / sizes.clamp(min=1e-300), (before == after).all(1))
        self.cosine += float(alike.sum())
        self.changed += float((after - before).square().sum())
        self.size += float(before.square().sum())
        self.unchanged &= torch.equal(x, y)
        self.samples += len(x)

    def result(self) -> Similarity:
        distance = math.sqrt(self.changed / self.size) if self.size else 0.0 if not self.changed else math.inf
        return Similarity(self.cosine / self.samples, distance, self.unchanged, self.samples)


@dataclass
class SimilarityRecord:
    """What `measured_similarity` gathers while the network runs."""

    _sums: dict[str, _Sums] = field(default_factory=dict)

    def results(self) -> dict[str, Similarity]:
        """Return the similarity of every site that something passed through, in the order of the network."""
        return {site: sums.result() for site, sums in self._sums.items() if sums.samples}


@contextmanager
def measured_similarity(model: nn.Module) -> Iterator[SimilarityRecord]:
    """Measure input and output of every gate, or of the mixer in its place, for as long as the context lasts.

    Whatever runs the network must call its modules: compiled copies and captured graphs do not. Fused kernels step
    back by themselves where a gate has a hook. Inputs are (N, C, *grid), and every sample counts alike.
    """
    record = SimilarityRecord()
    hooks = []
    for site, operator in operators_of(model).items():
        sums = record._sums.setdefault(site, _Sums())

        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, sums: _Sums = sums) -> None:
            sums.add(inputs[0], output)

        hooks.append(operator.register_forward_hook(add))
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


def bypass_sites(model: Network, sites: Mapping[str, object] | set[str]) -> Network:
    """Return a copy of a network in which these sites return their input, whatever they did before.

    The copy is exact only where they did so already. It can be saved and loaded.
    """
    copied = copy.deepcopy(model)
    operators = operators_of(copied)
    for site in sites:
        if site not in operators:
            raise ValueError(f"{type(model).__name__} has no site {site!r}: it has {', '.join(operators)}")
        _bypass(copied, operators[site])
    return copied


def bypass_similar(model: Network, measured: Mapping[str, Similarity], threshold: float) -> tuple[Network, list[str]]:
    """Return a copy without the sites whose mean cosine is at least `threshold`, and the names of these sites.

    Sites that are retired already are not named.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold} is no cosine to compare with: use a number above 0 and at most 1")
    present = [site for site, operator in operators_of(model).items() if not operator.retired]
    similar = [site for site in present if site in measured and measured[site].cosine >= threshold]
    return bypass_sites(model, set(similar)), similar


def _bypass(model: nn.Module, operator: FractionalHeat | SpectralMixer) -> None:
    remove_gate(model, operator, operator.alpha.item() if isinstance(operator, FractionalHeat) else 0.0)
