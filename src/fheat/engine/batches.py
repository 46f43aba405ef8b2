"""The batches of a run: crops of scans that were drawn beforehand, and a second view of the unlabelled ones."""

import torch
from torch import Tensor

from fheat.data.augment import gamma, noise
from fheat.data.pack import Size
from fheat.data.store import VolumeStore
from fheat.data.stream import HostStore
from fheat.engine.config import TrainConfig
from fheat.engine.memory import memory_for
from fheat.engine.order import draw_order, draw_places
from fheat.engine.placement import place
from fheat.engine.scans import Scans
from fheat.group import ALONE, Group
from fheat.methods.base import Batch


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
