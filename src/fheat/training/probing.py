"""Probes along a run (Proposition 1): which way the loss pulls each gate, measured without touching the run."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fheat.gates.probe import probe
from fheat.methods.base import Batch, Method
from fheat.system import processes
from fheat.system.errors import BadInput
from fheat.system.machine import memory_for
from fheat.training.prepare import Prepared
from fheat.training.run_folder import RunFolder
from fheat.training.trainer import Observer, Trainer


class Probes(Observer):
    """Emits the pairing of every gate after the iterations that the settings name; 0 is before the first.

    The batches are the same at every look, so that what changes from one to the next is the network.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def begin(self, trainer: Trainer) -> None:
        """Measure before the first iteration, if asked to."""
        if trainer.done == 0 and 0 in trainer.settings.research.probe_at:
            self.look(trainer)

    def due(self, trainer: Trainer) -> bool:
        """Return whether the settings name this iteration."""
        return trainer.done in trainer.settings.research.probe_at

    def look(self, trainer: Trainer) -> None:
        """Measure and emit; nothing of the gates where that is not finite, which must not end the run."""
        if trainer.done and not self.due(trainer):
            return
        device = trainer.step.iteration.device
        with memory_for("a probe in float32", self._folder.path, device, "leave out research.probe_at"):
            try:
                pairings = measure_pairings(trainer)
            except ValueError:
                pairings = {}
        trainer.emit([{"iteration": trainer.done, "probe": pairings}])


def check_probes(prepared: Prepared) -> None:
    """Raise `BadInput` where probes are asked for and the run cannot be probed."""
    if not prepared.settings.research.probe_at:
        return
    if processes.current().size > 1:
        reason = "is for runs of one process"
        raise BadInput("research.probe_at", reason, "leave it out, or probe the model folders later")
    if not prepared.step.gates:
        reason = f"is for networks with gates, not {prepared.settings.network.name}"
        raise BadInput("research.probe_at", reason, "leave it out")


def measure_pairings(trainer: Trainer) -> dict[str, dict[str, float | None]]:
    """Return what `probe` measures at every site for the loss that is minimised, in float32.

    Network, method, optimiser and random generators are left as they were.
    """
    step, settings = trainer.step, trainer.settings
    device, seed = step.iteration.device, settings.schedule.seed
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        batches = trainer.prepared.other_batches(settings.research.probe_batches, seed + 1).all()
        measured = probe(step.model, _loss_of(step.method), *batches)
    return {
        row.site: {
            "pairing": row.pairing,
            "error": row.error,
            "slope": row.slope,
            "slope_error": row.slope_error,
            "attenuation": row.attenuation,
        }
        for row in measured
    }


def _loss_of(method: Method) -> Callable[[nn.Module, Batch], Tensor]:
    """A method may remember something from iteration to iteration; every pass starts from what it knows now."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return copy.deepcopy(method).losses(model, batch)[method.names[0]]  # type: ignore[arg-type]

    return loss
