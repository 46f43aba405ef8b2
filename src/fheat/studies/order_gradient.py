"""The gradient of the loss with respect to the order alpha of every open gate of a trained network.

    dL/dalpha = dL/dtheta / (dalpha/dtheta)

An alpha that is bounded by 0.9 and wants to grow has a negative gradient at the bound: the bound is active and the
point is one of Karush, Kuhn and Tucker (Section V of the paper). The measured alpha is that which training left, near
the bound and not on it, because the sigmoid reaches it only in the limit.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fheat.gates.gradients import Loss
from fheat.models.card import Card
from fheat.models.folder import load
from fheat.networks.registry import spec_of
from fheat.ops import kernels
from fheat.ops.gates import gates_of
from fheat.studies.probe_scans import ProbePlan, checked_classes, draw_crops, supervised_loss
from fheat.system import processes
from fheat.training.scans import open_run_dataset
from fheat.training.settings import TrainSettings


@dataclass(frozen=True)
class OrderGradient:
    """dL/dalpha at one open gate: its mean over so many batches, and the standard error of it, None for one batch."""

    site: str
    D: float
    alpha: float
    mean: float
    error: float | None
    batches: int


def order_gradients(model: nn.Module, loss_fn: Loss, batches: Sequence[Any]) -> list[OrderGradient]:
    """Return dL/dalpha of every open gate whose order is trained, in the order of the network.

    The network is used in the mode it is in, and no gradient is left in its parameters.
    """
    gates = {site: gate for site, gate in gates_of(model).items() if gate.theta is not None and not gate.closed}
    thetas = [gate.theta for gate in gates.values()]
    by_batch: list[list[float]] = []
    with torch.enable_grad(), kernels.use("never"):
        for batch in batches if gates else ():
            gradients = torch.autograd.grad(loss_fn(model, batch), thetas)  # type: ignore[arg-type]
            by_batch.append([gradient.item() for gradient in gradients])
    found = []
    for place, (site, gate) in enumerate(gates.items()):
        alpha = gate.alpha
        (steepness,) = torch.autograd.grad(alpha, gate.theta)  # type: ignore[arg-type]
        values = [gradients[place] / steepness.item() for gradients in by_batch]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        mean = statistics.fmean(values)
        found.append(OrderGradient(site, gate.strength.item(), alpha.item(), mean, error, len(values)))
    return found


def measure_order_gradients(
    folder: Path, settings: TrainSettings, *, batches: int = 16, device: str | None = None
) -> list[OrderGradient]:
    """Return dL/dalpha of a saved network for the supervised loss on random crops of its labelled training scans."""
    model = load(folder)
    card, spec, dataset = getattr(model, "card", Card()), spec_of(model), open_run_dataset(settings.data)
    data, seed = settings.data, settings.schedule.seed
    plan = ProbePlan(data.patch_size, batches, data.labelled, seed=seed, allow=data.allow)
    classes = checked_classes(str(folder), spec, card, dataset)
    where = processes.own_device(device)
    crops = draw_crops(dataset, classes, card, spec, plan, where)
    return order_gradients(model.to(where), supervised_loss(classes, plan), crops)
