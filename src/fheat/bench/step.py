"""Training iterations per second on random volumes, with the step of `fheat train`; captured once on a GPU."""

import warnings
from collections.abc import Mapping, Set
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from fheat.bench.plan import Networks, in_its_way
from fheat.bench.timing import MOST_REPEATS, Candidate, Timer, ratios, seconds_of
from fheat.data.store import VolumeStore, pack_all
from fheat.inference.windows import Triple
from fheat.methods.base import Task
from fheat.methods.registry import method_class
from fheat.networks.padded import compile_bodies, is_compiled
from fheat.system.text import grid_name
from fheat.training.batches import Batches, draw
from fheat.training.optimiser import AdamW, Schedule
from fheat.training.settings import OptimiserSettings
from fheat.training.step import Step

METHODS = ("cse", "supervised")
SCANS = 4
"""Number of labelled scans, and of unlabelled ones; they are random and a little larger than the patch."""
WARM_UP = 2
"""Number of turns before those that are measured."""
_ITERATIONS_TO_CAPTURE = 6
"""Number of iterations after which a step is captured as a graph."""
_ITERATIONS_TO_COMPILE = 1
"""Number of iterations in which all that a step needs is compiled."""
_LEARNING_RATE = 1e-8
"""The learning rate is so low that no gate closes: every iteration does the same work."""


def step_times(timer: Timer, networks: Networks, patch: Triple, batch: int, method: str) -> dict[str, Any]:
    """Return times of training iterations with `batch` labelled scans, and as many unlabelled ones for a method that
    uses them."""
    iterations = _ITERATIONS_TO_COMPILE + _ITERATIONS_TO_CAPTURE + (WARM_UP + timer.rounds) * MOST_REPEATS
    steps = {
        name: in_its_way(name, build_step(timer, network, method, patch, batch, iterations))
        for name, network in networks.built.items()
    }
    compiled = {name for name, network in networks.built.items() if is_compiled(network)}
    seconds = compile_seconds(steps, compiled, timer.device)
    timer.notes.extend(f"{name}: compiled in {value:.1f} s, with {method}" for name, value in seconds.items())
    if timer.device.startswith("cuda"):
        for step in steps.values():
            for _ in range(_ITERATIONS_TO_CAPTURE):
                step()
    times = timer.times(dict(steps), warm_up=WARM_UP, capture=False)
    return {
        "method": method,
        "patch": grid_name(patch),
        "batch": batch,
        "precision": timer.precision,
        "milliseconds": times,
        "ratio": ratios(times),
        "per_second": {name: 1e3 / value for name, value in times.items()},
        "compile_seconds": seconds,
    }


def compile_seconds(steps: Mapping[str, Candidate], compiled: Set[str], device: str) -> dict[str, float]:
    """Return the seconds of the first iteration of each of the compiled steps, which builds its networks anew: nothing
    that was compiled before, by this program or an earlier one, is used. Kernels of fheat itself do not count, because
    the other steps need them first."""
    if not compiled:
        return {}
    from torch._inductor import config  # which takes a second to import

    for name in steps.keys() - compiled:
        steps[name]()
    torch.compiler.reset()
    with config.patch(force_disable_caches=True), warnings.catch_warnings():  # it warns that it does what it is told
        warnings.filterwarnings("ignore", ".*force_disable_caches")
        return {name: seconds_of(steps[name], 1, device.startswith("cuda")) for name in steps if name in compiled}


def build_step(timer: Timer, network: Any, method: str, patch: Triple, batch: int, iterations: int) -> Step:
    """Return a step on random volumes with random labels, in the stage of its method that a run ends in."""
    torch.manual_seed(timer.seed)
    kind = method_class(method)
    rule = kind(kind.Settings(name=method), Task(patch, batch, iterations=iterations)).to(timer.device)
    network.train()
    rule.prepare(network, lambda: deepcopy(network))
    if is_compiled(network):
        compile_bodies(rule)
    draws = draw((SCANS, SCANS), (rule.labelled, rule.unlabelled), iterations, timer.seed)
    slow = OptimiserSettings(learning_rate=_LEARNING_RATE, weight_decay=0.0)
    step = Step(
        network,
        rule,
        Batches(_store(timer, patch), draws, patch),
        rule.own_optimiser(network) or AdamW(network, slow, rule.trained(), rule),
        Schedule(iterations),
        precision=torch.bfloat16 if timer.precision == "bfloat16" else torch.float32,
    )
    step.enter_stage(rule.stage(iterations - 1))
    return step


def _store(timer: Timer, patch: Triple) -> VolumeStore:
    draw = np.random.default_rng(timer.seed)
    shape = tuple(length + 8 for length in patch)
    images = [draw.standard_normal(shape, dtype=np.float32) for _ in range(2 * SCANS)]
    labels = [(image > 1).astype(np.uint8) for image in images[:SCANS]]
    return VolumeStore(pack_all(images, [*labels, *(None for _ in range(SCANS))], patch), timer.device)
