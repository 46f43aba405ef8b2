"""The pairing of a trained network's gates on a dataset: the supervised loss on random crops of labelled scans."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fheat.data.case import Dataset
from fheat.data.classes import Classes, classes_of
from fheat.data.plausible import Allowance
from fheat.data.store import Size
from fheat.data.stream import place
from fheat.gates.gradients import Loss
from fheat.gates.probe import Others, Probe, probe
from fheat.methods.base import Batch, Task
from fheat.methods.supervised import Supervised, SupervisedSettings
from fheat.models.card import Card
from fheat.networks.registry import NetworkSpec
from fheat.system.errors import BadInput
from fheat.system.machine import memory_for
from fheat.system.progress import Progress, silent
from fheat.training.batches import Batches, draw
from fheat.training.scans import load_scans

METHOD = "supervised"
BATCH = 2
"""Number of crops in a batch."""


@dataclass(frozen=True)
class ProbePlan:
    """Plan of a measurement: number of batches, size of the crops, seed that draws them, number of labelled scans."""

    patch_size: Size
    batches: int = 8
    labelled: int | None = None
    others: Others = "closed"
    seed: int = 0
    allow: tuple[Allowance, ...] = ()


def checked_classes(name: str, spec: NetworkSpec, card: Card, dataset: Dataset) -> Classes:
    """Return the classes of a dataset, or raise `BadInput` where the loss of this model on it has no meaning."""
    classes = classes_of(dataset, regions=bool(card.regions))
    if len(classes.names) != spec.out_channels:
        listed = ", ".join(classes.names)
        reason = f"has {len(classes.names)} classes ({listed}), {name} has {spec.out_channels}"
        raise BadInput(dataset.root, reason, "give the kind of data the model was trained on")
    return classes


def draw_crops(
    dataset: Dataset,
    classes: Classes,
    card: Card,
    spec: NetworkSpec,
    plan: ProbePlan,
    device: torch.device,
    progress: Progress = silent,
) -> list[Batch]:
    """Return batches of random crops of the labelled training scans, prepared as the card says, on a device.

    Every scan comes once before any comes again. There are no unlabelled crops in them.
    """
    only_training = replace(dataset, cases=dataset.split("train"))
    scans = load_scans(
        only_training,
        classes,
        card.preprocessing,
        plan.patch_size,
        labelled=plan.labelled,
        allow=plan.allow,
        progress=progress,
    )
    if scans.channels != spec.in_channels:
        reason = f"has scans with {scans.channels} channels, the model takes {spec.in_channels}"
        raise BadInput(dataset.root, reason, "give the kind of data the model was trained on")
    what = f"a set of {len(scans.volumes)} scans"
    with memory_for(what, dataset.root, device, "use fewer labelled scans"):
        store = place(scans.volumes, device, "auto")
    draws = draw((scans.labelled, 0), (BATCH, 0), plan.batches, plan.seed)
    return Batches(store, draws, plan.patch_size).all()


def supervised_loss(classes: Classes, plan: ProbePlan) -> Loss:
    """Return the supervised loss of a network on a batch of crops."""
    task = Task(plan.patch_size, BATCH, len(classes.names), classes.regions)
    method = Supervised(SupervisedSettings(), task)

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return method.losses(network, batch)[method.names[0]]  # type: ignore[arg-type]

    return loss


def probe_crops(
    model: nn.Module, crops: list[Batch], classes: Classes, plan: ProbePlan, progress: Progress = silent
) -> Probe:
    """Return the pairing of every gate for the supervised loss; raises `ValueError` where it is not finite."""
    torch.manual_seed(plan.seed)
    return probe(model, supervised_loss(classes, plan), *crops, others=plan.others, progress=progress)
