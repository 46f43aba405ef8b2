"""Labelled batches as a run draws them, for whoever measures a network instead of training it."""

import torch

from fheat.engine.config import TrainConfig
from fheat.engine.memory import memory_for
from fheat.engine.order import draw_order, draw_places
from fheat.engine.placement import place
from fheat.engine.scans import Scans
from fheat.methods.base import Batch


def labelled_batches(scans: Scans, config: TrainConfig, count: int, device: torch.device) -> list[Batch]:
    """Return `count` batches of random crops of the labelled scans, on a device, drawn with the seed of the settings.

    Every scan comes once before any comes again. There is nothing unlabelled in them.
    """
    with memory_for(f"a set of {len(scans.volumes)} scans", config.data, device, "use fewer labelled scans"):
        store = place(scans.volumes, device, config.resident)
    generator = torch.Generator().manual_seed(config.seed)
    order = draw_order(scans.labelled, config.batch, count, generator)
    crops = store.crops(order, draw_places(config.batch, count, generator), config.patch_size)
    batches = []
    for iteration in torch.arange(count, device=device):
        crops.load(iteration)
        images, labels = crops(iteration)
        images = images.clone()  # a stream writes the next crops over these
        batches.append(Batch(images, labels, images[:0], images[:0]))
    return batches
