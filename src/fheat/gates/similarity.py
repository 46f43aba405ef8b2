"""How much each site of a network changes what it is given, and a copy without the sites that change it least.

This is the idea of post-hoc pruning by similarity between layers (Hong et al., *SlimFormer-3D*, MICCAI 2025), by
angular distance and by CKA: what mixes voxels or channels in a layer that looks like the layer before it is left out
after training. Unlike `fheat.retire` it changes the outputs of the network, so its price has to be measured.
"""

import copy
import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fheat.gates.cka import RunningCKA
from fheat.gates.retire import remove_gate
from fheat.ops.gates import operators_of
from fheat.ops.heat import FractionalHeat
from fheat.ops.mixing_block import blocks_of, branches_of
from fheat.ops.spectral_mixer import SpectralMixer

Network = TypeVar("Network", bound=nn.Module)
Measure = Literal["cosine", "cka"]
"""Number of a `Similarity` by which sites are left out."""
Compared = Literal["sites", "blocks", "branches"]
"""The two features that are compared: input and output of each site itself, those of the block that it works in, or x
before and after each residual branch."""


@dataclass(frozen=True)
class Similarity:
    """How like its input x the output y of a site, or of its blocks, is, over everything that passed through."""

    cosine: float
    """Mean over samples and calls of <x, y> / (|x| |y|); 1 for the identity and for any change of scale."""
    distance: float
    """Relative distance from the identity, sqrt(sum |y - x|^2 / sum |x|^2); 0 for the identity."""
    unchanged: bool
    """Whether y was x bit for bit, every time."""
    samples: int
    """Number of samples that passed, over all calls."""
    cka: float
    """Linear CKA of x and y, see `fheat.gates.cka`: 1 for the identity, and for any rotation, shift and change of scale
    of the channels. The mean over the numbers of channels, where a site is called with several."""

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
    cka: dict[int, RunningCKA] = field(default_factory=dict)

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
        self.cka.setdefault(x.shape[1], RunningCKA()).add(x, y)

    def result(self) -> Similarity:
        distance = math.sqrt(self.changed / self.size) if self.size else 0.0 if not self.changed else math.inf
        cka = statistics.fmean(one.result() for one in self.cka.values())
        return Similarity(self.cosine / self.samples, distance, self.unchanged, self.samples, cka)


@dataclass
class SimilarityRecord:
    """Sums that `measured_similarity` gathers while the network runs."""

    _sums: dict[str, _Sums] = field(default_factory=dict)

    def results(self) -> dict[str, Similarity]:
        """Return the similarity of every site that something passed through, in the order of the network."""
        return {site: sums.result() for site, sums in self._sums.items() if sums.samples}


@contextmanager
def measured_similarity(model: nn.Module, compared: Compared = "sites") -> Iterator[SimilarityRecord]:
    """Measure how alike input and output are at every site, for as long as the context lasts.

    Whatever runs the network must call its modules: compiled copies and captured graphs do not. Fused kernels step
    back by themselves where a module has a hook. Inputs are (N, C, *grid), and every sample counts alike.

    Args:
        model: the network.
        compared: `sites` compares input and output of every gate, or of the mixer in its place. `blocks` compares what
            enters a block, which is the output of the block before, with what leaves it: two consecutive layers. All
            blocks in which a gate or mixer works count for its site; a block that has a mixer of its own, such as
            attention, is a site of the mixer's path. Sites outside blocks are not measured. `branches` compares x with
            x + branch(x), for each residual branch that can be left out: the mixing of channels of every block, and its
            mixing of voxels where that is a module of its own. The site is the path of the branch.
    """
    if compared not in get_args(Compared):
        raise ValueError(f"compared={compared!r} is unknown: use one of {', '.join(get_args(Compared))}")
    record = SimilarityRecord()
    place = {"sites": _hooks_of_sites, "blocks": _hooks_of_blocks, "branches": _hooks_of_branches}
    hooks = place[compared](model, record)
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


def _hooks_of_sites(model: nn.Module, record: SimilarityRecord) -> list[RemovableHandle]:
    hooks = []
    for site, operator in operators_of(model).items():
        sums = record._sums.setdefault(site, _Sums())

        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, sums: _Sums = sums) -> None:
            sums.add(inputs[0], output)

        hooks.append(operator.register_forward_hook(add))
    return hooks


def _hooks_of_blocks(model: nn.Module, record: SimilarityRecord) -> list[RemovableHandle]:
    running: list[set[str]] = []  # sites that worked in each of the blocks that run now, the innermost last
    hooks = []

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        running.append(set())

    for path, block in blocks_of(model).items():
        own = set() if block.own_mixer is None else {f"{path}.{block.own_mixer}"}

        def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any, own: set[str] = own) -> None:
            y = output[0] if isinstance(output, tuple) else output
            for site in running.pop() or own:
                record._sums.setdefault(site, _Sums()).add(inputs[0], y)

        hooks += [block.register_forward_pre_hook(enter), block.register_forward_hook(leave)]
    for site, operator in operators_of(model).items():

        def note(module: nn.Module, inputs: tuple[Any, ...], site: str = site) -> None:
            if running:
                running[-1].add(site)

        hooks.append(operator.register_forward_pre_hook(note))
    return hooks


def _hooks_of_branches(model: nn.Module, record: SimilarityRecord) -> list[RemovableHandle]:
    before: dict[str, Tensor] = {}  # x at the beginning of each branch that runs now
    hooks = []
    for path, branch in branches_of(model).items():
        if not branch.present:
            continue
        first, last = branch.ends

        def enter(module: nn.Module, inputs: tuple[Any, ...], path: str = path) -> None:
            before[path] = inputs[0]

        def leave(module: nn.Module, inputs: tuple[Any, ...], output: Tensor, path: str = path) -> None:
            x = before.pop(path)
            record._sums.setdefault(path, _Sums()).add(x, x + output)

        hooks += [first.register_forward_pre_hook(enter), last.register_forward_hook(leave)]
    return hooks


def bypass_sites(model: Network, sites: Mapping[str, object] | set[str]) -> Network:
    """Return a copy of a network without what mixes voxels or channels at these sites, whatever it did before.

    A gate, or the mixer in its place, returns its input; a block of which a branch is left out adds nothing there. The
    copy is exact only where that was so already. It can be saved and loaded.
    """
    copied = copy.deepcopy(model)
    operators, branches = operators_of(copied), branches_of(copied)
    for site in sites:
        if site in operators:
            _bypass(copied, operators[site])
        elif site in branches:
            branches[site].remove()
        else:
            known = ", ".join((*operators, *branches))
            raise ValueError(f"{type(model).__name__} has no site {site!r}: it has {known}")
    return copied


def bypass_similar(
    model: Network, measured: Mapping[str, Similarity], threshold: float, by: Measure = "cosine"
) -> tuple[Network, list[str]]:
    """Return a copy without the sites whose mean cosine, or CKA, is at least `threshold`, and the names of these sites.

    Sites that are retired already are not named. What was measured says which sites there are: the mixing of channels
    is left out only where branches were compared.
    """
    if by not in get_args(Measure):
        raise ValueError(f"by={by!r} is unknown: use one of {', '.join(get_args(Measure))}")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold} is no {by} to compare with: use a number above 0 and at most 1")
    present = [site for site, operator in operators_of(model).items() if not operator.retired]
    present += [site for site, branch in branches_of(model).items() if branch.present]
    similar = [site for site in present if site in measured and getattr(measured[site], by) >= threshold]
    return bypass_sites(model, set(similar)), similar


def _bypass(model: nn.Module, operator: FractionalHeat | SpectralMixer) -> None:
    remove_gate(model, operator, operator.alpha.item() if isinstance(operator, FractionalHeat) else 0.0)
