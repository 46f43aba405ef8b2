"""Batches of a run: which scans each iteration sees and where crops of them lie, drawn once for the whole run."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fheat.data.store import Size, VolumeStore
from fheat.data.stream import HostStore
from fheat.methods.base import Batch
from fheat.ops import kernels
from fheat.system import processes
from fheat.training.walks import Augment, walks_of


class Draws(NamedTuple):
    """The crops that were drawn for the batches of all processes together, labelled ones and unlabelled ones.

    orders: each (iterations, crops), which scans come; places: each (iterations, crops, 3), uniform in [0, 1), where in
    them the crops lie; chances: each (iterations, crops, 3), uniform in [0, 1), by which crops are augmented.
    """

    orders: tuple[Tensor, Tensor]
    places: tuple[Tensor, Tensor]
    chances: tuple[Tensor, Tensor]


def draw_run(
    scans: tuple[int, int], crops: tuple[int, int], iterations: int, seed: int, first: int | None = None
) -> Draws:
    """Draw the crops of a run that was begun with `first` iterations, if that was another number: those of `draw` for
    that number, of which the last are left out, or which more follow.

    Draws for n + k iterations start with those for n: more are drawn by a generator of its own for each kind of draw.
    """
    first = iterations if first is None else first
    begun = draw(scans, crops, first, seed)
    if iterations <= first:
        return Draws(*((kind[0][:iterations], kind[1][:iterations]) for kind in begun))
    states = np.random.SeedSequence([seed, first]).generate_state(6, np.uint64)
    generators = [torch.Generator().manual_seed(int(state)) for state in states]
    orders = (
        continue_order(begun.orders[0], scans[0], iterations, generators[0]),
        scans[0] + continue_order(begun.orders[1] - scans[0], scans[1], iterations, generators[1]),
    )

    def more(old: Tensor, generator: torch.Generator) -> Tensor:
        return torch.cat([old, draw_places(old.shape[1], iterations - first, generator)])

    places = more(begun.places[0], generators[2]), more(begun.places[1], generators[3])
    chances = more(begun.chances[0], generators[4]), more(begun.chances[1], generators[5])
    return Draws(orders, places, chances)


def draw(scans: tuple[int, int], crops: tuple[int, int], iterations: int, seed: int) -> Draws:
    """Draw crops from so many (labelled, unlabelled) scans; unlabelled scans follow the labelled ones.

    `crops` is the number of labelled and unlabelled crops per iteration and process.
    """
    generator = torch.Generator().manual_seed(seed)
    labelled, unlabelled = (processes.current().size * count for count in crops)
    orders = (
        draw_order(scans[0], labelled, iterations, generator),
        scans[0] + draw_order(scans[1], unlabelled, iterations, generator),
    )
    places = draw_places(labelled, iterations, generator), draw_places(unlabelled, iterations, generator)
    chances = draw_places(labelled, iterations, generator), draw_places(unlabelled, iterations, generator)
    return Draws(orders, places, chances)


def draw_order(scans: int, batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch) indices: permutations of the scans, one after the other, cut into batches.

    Every scan comes once before any comes again; a batch may span two permutations where their lengths do not divide.
    """
    if batch == 0:
        return torch.zeros(iterations, 0, dtype=torch.int64)
    rounds = -(-iterations * batch // scans)
    order = torch.empty(rounds, scans, dtype=torch.int64)
    for permutation in order:
        torch.randperm(scans, generator=generator, out=permutation)
    return order.flatten()[: iterations * batch].view(iterations, batch)


def continue_order(order: Tensor, scans: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return an order of `draw_order`, (n, batch), followed by more of its kind up to so many iterations.

    First come the scans that the last permutation still owes.
    """
    batch = order.shape[1]
    if batch == 0:
        return torch.zeros(iterations, 0, dtype=torch.int64)
    begun = order.flatten()
    seen = begun[begun.numel() // scans * scans :]
    owed = torch.randperm(scans, generator=generator)
    parts = [begun, owed[~torch.isin(owed, seen)]]
    rounds = -(-(iterations * batch - parts[0].numel() - parts[1].numel()) // scans)
    parts += [torch.randperm(scans, generator=generator) for _ in range(rounds)]
    return torch.cat(parts)[: iterations * batch].view(iterations, batch)


def draw_places(batch: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return (iterations, batch, 3) numbers, uniform in [0, 1)."""
    return torch.rand(iterations, batch, 3, generator=generator)


def mirrored(voxels: Tensor, axes: Tensor) -> Tensor:
    """Return crops (B, ..., X, Y, Z), each reversed along those of its last three axes where `axes` (B, 3) is set."""
    for axis in range(3):
        chosen = axes[:, axis].view(-1, *[1] * (voxels.ndim - 1))
        voxels = torch.where(chosen, voxels.flip(axis - 3), voxels)
    return voxels


def rotated(voxels: Tensor, quarters: Tensor) -> Tensor:
    """Return crops (B, ..., X, X, Z), each turned by its number of quarters in the plane of the first two axes."""
    chosen = quarters.view(-1, *[1] * (voxels.ndim - 1))
    for count in (1, 2, 3):
        voxels = torch.where(chosen == count, voxels.rot90(count, (-3, -2)), voxels)
    return voxels


def augmented(voxels: Tensor, chances: Tensor, kind: Augment) -> Tensor:
    """Return crops (B, ..., X, Y, Z) changed by numbers (B, 3) from [0, 1), images and labels alike.

    `mirror` reverses an axis where its number is below one half. `rotate` turns by floor(4 a) quarters, then reverses
    the first or the second axis, as the second number is below one half or not. `none` changes nothing.
    """
    if kind == "none":
        return voxels
    if kind == "mirror":
        return mirrored(voxels, chances < 0.5)
    first = chances[:, 1:2] < 0.5
    axes = torch.cat([first, ~first, torch.zeros_like(first)], dim=1)
    return mirrored(rotated(voxels, (4 * chances[:, 0]).long()), axes)


class Batches:
    """The batches of a run, cropped from a store; this process crops its rows of what was drawn for all.

    Crops and their labels are augmented alike, as `augment` says.
    """

    def __init__(self, store: VolumeStore | HostStore, draws: Draws, patch: Size, *, augment: Augment = "none") -> None:
        self.store, self.patch, self.augment = store, patch, augment
        rows = processes.current().rows
        cases, where, chances = ([rows(drawn.transpose(0, 1)).transpose(0, 1) for drawn in kind] for kind in draws)
        self._chances = [drawn.to(store.low.device) for drawn in chances]
        self._crops = [store.crops(*drawn, patch) for drawn in zip(cases, where, strict=True) if drawn[0].shape[1]]
        self._unlabelled = cases[1].to(store.low.device)
        self._walks: Tensor | None = None
        turns = augment == "rotate" and patch[0] != patch[1]  # the twin refuses these
        if isinstance(store, VolumeStore) and kernels.usable(store.low) and not turns:
            which, places, luck = (torch.cat(kind, dim=1).to(store.low.device) for kind in (cases, where, chances))
            self._walks = walks_of(store, which, places, luck, patch, augment)

    def __len__(self) -> int:
        return len(self._unlabelled)

    def load(self, iteration: Tensor) -> None:
        """Make `iteration` the one that is read next; the host calls this before each, in order."""
        for crops in self._crops:
            crops.load(iteration)

    def __call__(self, iteration: Tensor) -> Batch:
        """Return the batch of the iteration that was loaded."""
        if self._walks is not None and kernels.usable(self.store.low):
            return self._gathered(self._walks, iteration)
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
        chances = self._chances[kind].index_select(0, iteration[None])[0]
        return augmented(images, chances, self.augment), augmented(labels, chances, self.augment)

    def _gathered(self, walks: Tensor, iteration: Tensor) -> Batch:
        """Return the batch of an iteration by one kernel, from the walks of its crops, labelled ones first."""
        from fheat.ops.kernels.crops import Stored, gather_crops  # Triton takes a second to import

        assert isinstance(self.store, VolumeStore)
        stored = Stored(self.store.voxels, self.store.tables, self.store.labels, self.store.low, self.store.high)
        count = walks.shape[1] - self._unlabelled.shape[1]
        with kernels.on_device(walks):
            images, labels, low, high = gather_crops(stored, walks, iteration, self.patch, count)
        return Batch(images[:count], labels, images[count:], low[count:], high[count:])

    def all(self) -> list[Batch]:
        """Return every batch, from the first on; for few of them, and once."""
        batches = []
        for iteration in torch.arange(len(self), device=self._unlabelled.device):
            self.load(iteration)
            # A stream writes the next crops over these.
            batches.append(Batch(*(part.clone() for part in self(iteration))))
        return batches
