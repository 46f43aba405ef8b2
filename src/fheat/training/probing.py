"""Proposition 1 along a run: which way the training loss pulls each gate, measured without touching the run."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fheat.gates.probe import probe
from fheat.methods.base import Batch, Method
from fheat.training.batches import Batches
from fheat.training.step import Step


class Probing:
    """The same batches at every look, so that what changes from one to the next is the network.

    `batches` is a function that draws them anew: crops are streamed in order, once.
    """

    def __init__(self, batches: Callable[[], Batches], seed: int) -> None:
        self._draw, self._seed = batches, seed

    def __call__(self, step: Step) -> dict[str, dict[str, float | None]]:
        """Return what `probe` finds at every site for the loss that is minimised, in float32.

        Network, method, optimiser and random generators are left as they were.
        """
        device = step.iteration.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self._seed)
            drawn = self._draw().all()
            found = probe(step.model, _loss_of(step.method), *drawn)
        return {
            row.site: {
                "pairing": row.pairing,
                "error": row.error,
                "slope": row.slope,
                "slope_error": row.slope_error,
                "attenuation": row.attenuation,
            }
            for row in found
        }


def _loss_of(method: Method) -> Callable[[nn.Module, Batch], Tensor]:
    """A method may remember something from step to step; every pass starts from what it knows now."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return copy.deepcopy(method).losses(model, batch)[method.names[0]]  # type: ignore[arg-type]

    return loss
