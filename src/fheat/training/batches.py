"""Batches of a run: which scans each iteration sees and where crops of them lie, drawn once for the whole run."""

from typing import NamedTuple

import torch
from torch import Tensor

from fheat.data.store import Size, VolumeStore
from fheat.data.stream import HostStore
from fheat.methods.base import Batch
from fheat.system import processes


class Draws(NamedTuple):
    """The crops that were drawn for the batches of all processes together, labelled ones and unlabelled ones.

    orders: each (iterations, crops), which scans come; places: each (iterations, crops, 3), uniform in [0, 1), where in
    them the crops lie; mirrors: each (iterations, crops, 3), along which axes a crop is mirrored where crops are.
    """

    orders: tuple[Tensor, Tensor]
    places: tuple[Tensor, Tensor]
    mirrors: tuple[Tensor, Tensor]


def draw(scans: tuple[int, int], crops: tuple[int, int], iterations: int, seed: int) -> Draws:
    """Draw the crops of a run from so many (labelled, unlabelled) scans; unlabelled scans follow the labelled ones.

    `crops` is the number of labelled and unlabelled crops per iteration and process.
    """
    generator = torch.Generator().manual_seed(seed)
    labelled, unlabelled = (processes.current().size * count for count in crops)
    orders = (
        draw_order(scans[0], labelled, iterations, generator),
        scans[0] + draw_order(scans[1], unlabelled, iterations, generator),
    )
    places = draw_places(labelled, iterations, generator), draw_places(unlabelled, iterations, generator)
    mirrors = draw_mirrors(labelled, iterations, generator), draw_mirrors(unlabelled, iterations, generator)
    return Draws(orders, places, mirrors)


def draw_order(scans: int, batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch) indices: permutations of the scans, one after the other, cut into batches.

    Every scan comes once before any comes again; a batch may span two permutations where their lengths do not divide.
    """
    if batch == 0:
        return torch.zeros(iterations, 0, dtype=torch.int64)
    rounds = -(-iterations * batch // scans)
    order = torch.cat([torch.randperm(scans, generator=generator) for _ in range(rounds)])
    return order[: iterations * batch].view(iterations, batch)


def draw_places(batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch, 3) numbers, uniform in [0, 1): where in the scans the crops lie."""
    return torch.rand(iterations, batch, 3, generator=generator)


def draw_mirrors(batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch, 3) truth values with equal chances: whether a crop is mirrored along each axis."""
    return torch.rand(iterations, batch, 3, generator=generator) < 0.5


def mirrored(voxels: Tensor, axes: Tensor) -> Tensor:
    """Return crops (B, ..., X, Y, Z), each reversed along those of its last three axes where `axes` (B, 3) is set."""
    for axis in range(3):
        chosen = axes[:, axis].view(-1, *[1] * (voxels.ndim - 1))
        voxels = torch.where(chosen, voxels.flip(axis - 3), voxels)
    return voxels


class Batches:
    """The batches of a run, cropped from a store; this process crops its rows of what was drawn for all.

    With `mirror`, crops and their labels are reversed along the axes that were drawn for them.
    """

    def __init__(self, store: VolumeStore | HostStore, draws: Draws, patch: Size, *, mirror: bool = False) -> None:
        self.store, self.patch = store, patch
        rows = processes.current().rows
        cases, where, mirrors = ([rows(drawn.transpose(0, 1)).transpose(0, 1) for drawn in kind] for kind in draws)
        self._mirrors = [drawn.to(store.low.device) for drawn in mirrors] if mirror else None
        self._crops = [store.crops(*drawn, patch) for drawn in zip(cases, where, strict=True) if drawn[0].shape[1]]
        self._unlabelled = cases[1].to(store.low.device)

    def __len__(self) -> int:
        return len(self._unlabelled)

    def load(self, iteration: Tensor) -> None:
        """Make `iteration` the one that is read next; the host calls this before each, in order."""
        for crops in self._crops:
            crops.load(iteration)

    def __call__(self, iteration: Tensor) -> Batch:
        """Return the batch of the iteration that was loaded."""
        images, labels = self._crop(0, iteration)
        if self._unlabelled.shape[1] == 0:
            nothing = self.store.low[:0]
            return Batch(images, labels, images[:0], nothing, nothing)
        unlabelled, _ = self._crop(1, iteration)
        cases = self._unlabelled.index_select(0, iteration[None])[0]
        return Batch(images, labels, unlabelled, self.store.low[cases], self.store.high[cases])

    def _crop(self, kind: int, iteration: Tensor) -> tuple[Tensor, Tensor]:
        """Return images and labels of an iteration, labelled (0) or unlabelled ones (1)."""
        images, labels = self._crops[kind](iteration)
        if self._mirrors is None:
            return images, labels
        axes = self._mirrors[kind].index_select(0, iteration[None])[0]
        return mirrored(images, axes), mirrored(labels, axes)

    def all(self) -> list[Batch]:
        """Return every batch, from the first on; for few of them, and once."""
        batches = []
        for iteration in torch.arange(len(self), device=self._unlabelled.device):
            self.load(iteration)
            # A stream writes the next crops over these.
            batches.append(Batch(*(part.clone() for part in self(iteration))))
        return batches
