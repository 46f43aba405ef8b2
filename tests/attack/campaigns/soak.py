"""A long training of a tiny network: `python -m tests.attack.campaigns.soak --iterations 20000`.

Memory and open descriptors are looked at a hundred times. After the first tenth of the run memory may grow by `ALLOWED`
bytes, for checkpoints of a growing history and the allocator, and no descriptor more may be open.
"""

import os
import sys
from typing import Any

import torch

import fheat
from fheat.inference.memory import resident_bytes
from fheat.training.trainer import Observer, Trainer
from tests.attack.campaigns.common import options, report, workplace
from tests.miniature import register
from tests.training.helpers import SMALL

ALLOWED = 32 * 2**20
"""Bytes by which a run may grow after its first tenth."""


class Watch(Observer):
    """Looks at memory and descriptors of this process a hundred times."""

    def __init__(self, iterations: int) -> None:
        self._every = max(1, iterations // 100)
        self.seen: list[tuple[int, int, int]] = []

    def due(self, trainer: Trainer) -> bool:
        """Return whether it is time."""
        return trainer.done % self._every == 0

    def look(self, trainer: Trainer) -> None:
        """Take down iteration, bytes and descriptors."""
        self.seen.append((trainer.done, resident_bytes(), len(os.listdir("/proc/self/fd"))))


def growth(seen: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Return by how many bytes and descriptors the run has grown since its first tenth."""
    early = seen[: max(1, len(seen) // 10)]
    later = seen[len(early) :] or early
    bytes_, descriptors = (max(at[kind] for at in later) - max(at[kind] for at in early) for kind in (1, 2))
    return bytes_, descriptors


def main() -> int:
    """Run the campaign."""
    given = options(__doc__, "soak-cpu", iterations=20_000)
    torch.set_num_threads(1)
    register()
    watch = Watch(given.iterations)
    with workplace() as (scans, folder):
        every: dict[str, Any] = {"validate_every": 200, "checkpoint_every": 100, "method": "supervised"}
        settings = {**SMALL, **every, "iterations": given.iterations, "seed": given.seed}
        fheat.train(data=str(scans), out=folder / "run", device="cpu", observers=[watch], **settings)
    grown, descriptors = growth(watch.seen)
    lost = [f"{grown} bytes more"] * (grown > ALLOWED) + [f"{descriptors} descriptors more"] * (descriptors > 0)
    results = {
        "iterations": given.iterations,
        "bytes_grown": grown,
        "descriptors_grown": descriptors,
        "resident_mib": [at[1] // 2**20 for at in watch.seen],
        "descriptors": [at[2] for at in watch.seen],
        "faults": lost,
    }
    return report(
        given, "soak", "Memory and open descriptors over a long training", {"allowed_bytes": ALLOWED}, results
    )


if __name__ == "__main__":
    sys.exit(main())
