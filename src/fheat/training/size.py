"""How much memory a run takes at the least, by arithmetic: what no machine has is refused before it is asked for."""

from math import prod

from fheat.inference.memory import machine_bytes
from fheat.system.errors import BadInput
from fheat.training.settings import TrainSettings

BYTES_PER_CROP = 8 + 3 * 4 + 3 * 4
"""Bytes of what is drawn for a crop before the run begins: which scan, where in it, and how it is augmented."""
BYTES_PER_ITERATION = 4 * 4
"""Bytes that an iteration logs on the device at the least: a loss, the total, the norm of the gradient and the rate."""


def check_size(settings: TrainSettings, channels: int = 1) -> None:
    """Raise `BadInput` where crops, draws or history of a run would not fit into all the memory of this machine.

    A batch holds `batch x channels` crops of `patch_size` in float32. What a run needs beside is many times as much, so
    a run that passes may still not fit.
    """
    memory = machine_bytes()
    if memory is None:
        return
    data, iterations = settings.data, settings.schedule.iterations
    crop = 4 * channels * prod(data.patch_size)
    _check("data.batch", data.batch, crop, f"crops of {data.patch_size}", memory)
    planned = data.batch * BYTES_PER_CROP
    what = f"iterations with batch {data.batch}"
    _check("schedule.iterations", iterations, planned + BYTES_PER_ITERATION, what, memory)
    _check("research.probe_batches", settings.research.probe_batches, planned, what, memory)


def _check(field: str, count: int, each: int, what: str, memory: int) -> None:
    if count * each > memory:
        reason = f"{count:,} {what} take at least {_size(count * each)}, and this machine has {_size(memory)} of memory"
        raise BadInput(field, reason, f"use at most {memory // each:,}")


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
