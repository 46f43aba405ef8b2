"""Training iterations per second on random volumes, through the step of the real loop; captured once on a GPU."""

from typing import Any

import numpy as np
import torch

from fheat.bench.networks import Networks
from fheat.bench.plan import Conditions, Triple, named
from fheat.bench.timing import REPEATS, ratios
from fheat.data.store import VolumeStore, pack_all
from fheat.methods.base import Task
from fheat.methods.registry import method_class
from fheat.training.batches import Batches, draw
from fheat.training.optimiser import AdamW, Schedule
from fheat.training.settings import OptimiserSettings
from fheat.training.step import Step

METHODS = ("cse", "supervised")
SCANS = 4
"""Of each kind; random, a little larger than the patch."""
WARM_UP = 2
_BEFORE = 6
"""Iterations until a step has been captured."""
LEARNING_RATE = 1e-8
"""So low that no gate moves: all that were open stay open, and every iteration does the same work."""


def step_times(settings: Conditions, networks: Networks, patch: Triple, batch: int, method: str) -> dict[str, Any]:
    """Time iterations of a method with `batch` labelled scans, and as many unlabelled ones if it has use for them."""
    iterations = _BEFORE + (WARM_UP + settings.rounds) * REPEATS
    steps = {
        name: build_step(settings, network, method, patch, batch, iterations)
        for name, network in networks.built.items()
    }
    if settings.device.startswith("cuda"):
        for step in steps.values():
            for _ in range(_BEFORE):
                step()
    times = settings.times(dict(steps), warm_up=WARM_UP, capture=False)
    return {
        "method": method,
        "patch": named(patch),
        "batch": batch,
        "precision": settings.precision,
        "milliseconds": times,
        "ratio": ratios(times),
        "per_second": {name: 1e3 / value for name, value in times.items()},
    }


def build_step(settings: Conditions, network: Any, method: str, patch: Triple, batch: int, iterations: int) -> Step:
    """Return a step on random volumes with random labels."""
    torch.manual_seed(settings.seed)
    kind = method_class(method)
    rule = kind(kind.Settings(name=method), Task(patch, batch, iterations=iterations)).to(settings.device)
    network.train()
    rule.prepare(network, lambda: network)
    draws = draw((SCANS, SCANS), (rule.labelled, rule.unlabelled), iterations, settings.seed)
    slow = OptimiserSettings(learning_rate=LEARNING_RATE, weight_decay=0.0)
    return Step(
        network,
        rule,
        Batches(_store(settings, patch), draws, patch),
        AdamW(network, slow, list(rule.parameters())),
        Schedule(iterations),
        precision=torch.bfloat16 if settings.precision == "bfloat16" else torch.float32,
    )


def _store(settings: Conditions, patch: Triple) -> VolumeStore:
    draw = np.random.default_rng(settings.seed)
    shape = tuple(length + 8 for length in patch)
    images = [draw.standard_normal(shape, dtype=np.float32) for _ in range(2 * SCANS)]
    labels = [(image > 1).astype(np.uint8) for image in images[:SCANS]]
    return VolumeStore(pack_all(images, [*labels, *(None for _ in range(SCANS))], patch), settings.device)
