"""Which scans each iteration sees, drawn once for a whole run."""

import torch
from torch import Tensor

from fheat.data.store import Size, VolumeStore
from fheat.data.stream import HostStore, place
from fheat.methods.base import Batch
from fheat.methods.cse import gamma, noise
from fheat.system.machine import memory_for
from fheat.system.processes import ALONE, Group
from fheat.training.scans import Scans
from fheat.training.settings import TrainConfig


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


class Batches:
    """Which scans come (`orders`: labelled and unlabelled, each (iterations, scans)) and where crops of them lie
    (`places`: each (iterations, scans, 3)), for the whole batch of the group; this process crops its rows."""

    def __init__(
        self,
        store: VolumeStore | HostStore,
        orders: tuple[Tensor, Tensor],
        places: tuple[Tensor, Tensor],
        patch: Size,
        group: Group = ALONE,
    ) -> None:
        self.store, self.group = store, group
        cases, where = (
            [group.rows(drawn.transpose(0, 1)).transpose(0, 1) for drawn in kind] for kind in (orders, places)
        )
        self._crops = [store.crops(*drawn, patch) for drawn in zip(cases, where, strict=True) if drawn[0].shape[1]]
        self._unlabelled = cases[1].to(store.low.device)

    def __len__(self) -> int:
        return len(self._unlabelled)

    def load(self, iteration: Tensor) -> None:
        """Make `iteration` the one that is read next; the host calls this before each, in order."""
        for crops in self._crops:
            crops.load(iteration)

    def __call__(self, iteration: Tensor) -> Batch:
        """Return the batch of the iteration that was loaded; the strong view draws from the device's generator."""
        images, labels = self._crops[0](iteration)
        if self._unlabelled.shape[1] == 0:
            return Batch(images, labels, images[:0], images[:0])
        weak, _ = self._crops[1](iteration)
        unlabelled = self._unlabelled.index_select(0, iteration[None])[0]
        bright = gamma(weak, self.store.low[unlabelled], self.store.high[unlabelled], group=self.group)
        return Batch(images, labels, weak, noise(bright, group=self.group))

    def all(self) -> list[Batch]:
        """Return every batch, from the first on; for few of them, and once."""
        found = []
        for iteration in torch.arange(len(self), device=self._unlabelled.device):
            self.load(iteration)
            found.append(Batch(*(part.clone() for part in self(iteration))))  # a stream writes the next crops over them
        return found


def labelled_batches(scans: Scans, config: TrainConfig, count: int, device: torch.device) -> list[Batch]:
    """Return `count` batches of random crops of the labelled scans, on a device, drawn with the seed of the settings.

    Every scan comes once before any comes again. There is nothing unlabelled in them.
    """
    with memory_for(f"a set of {len(scans.volumes)} scans", config.data, device, "use fewer labelled scans"):
        store = place(scans.volumes, device, config.resident)
    generator = torch.Generator().manual_seed(config.seed)
    orders = draw_order(scans.labelled, config.batch, count, generator), draw_order(0, 0, count, generator)
    places = draw_places(config.batch, count, generator), draw_places(0, count, generator)
    return Batches(store, orders, places, config.patch_size).all()
