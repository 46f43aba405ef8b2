"""What is alike for all that is measured in a run, and how lists on the command line are read."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch

from fheat.bench.timing import Progress, Run, interleaved
from fheat.models.base import checked_patch_size

Precision = Literal["float32", "bfloat16"]
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Settings:
    """Device, precision and number of turns of a benchmark.

    `notes` collects what the reader of a result must know and the numbers do not say.
    """

    device: str = "cpu"
    rounds: int = 5
    precision: Precision = "float32"
    seed: int = 0
    progress: Progress | None = None
    notes: list[str] = field(default_factory=list)

    def times(self, candidates: dict[str, Run], *, warm_up: int = 2, capture: bool = True) -> dict[str, float]:
        """Return median milliseconds, see `interleaved`."""
        return interleaved(
            candidates,
            self.rounds,
            self.device,
            warm_up=warm_up,
            capture=capture,
            progress=self.progress,
            notes=self.notes,
        )

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which networks run: bfloat16 where asked for, else as they are."""
        kind = torch.device(self.device).type
        # Without a cache of cast weights, which a captured graph could not hold.
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bfloat16", cache_enabled=False)

    def forward(self, network: Callable[[torch.Tensor], object], x: torch.Tensor) -> Run:
        """Return a candidate: one forward pass without gradients."""

        def run() -> object:
            with torch.no_grad(), self.autocast():
                return network(x)

        return run


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Read `1,2,4`: whole numbers from 1 on, ascending."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or any(b <= a for a, b in pairwise(found)):
        raise ValueError(f"{name}={text!r} is not usable: give ascending whole numbers such as 1,2,4,8")
    return found


def grids(text: str, name: str) -> tuple[Triple, ...]:
    """Read `64,96,112x112x80`: cubes and boxes, at least two, ascending in voxels."""
    found: list[Triple] = []
    try:
        for word in text.split(","):
            sides = [int(side) for side in word.split("x")]
            found.append(checked_patch_size(sides * 3 if len(sides) == 1 else sides))
    except ValueError:
        found = []
    volumes = [x * y * z for x, y, z in found]
    if len(found) < 2 or any(b <= a for a, b in pairwise(volumes)):
        example = "two or more ascending sizes of at least 32 such as 64,96,112x112x80"
        raise ValueError(f"{name}={text!r} is not usable: give {example}")
    return tuple(found)


def named(grid: tuple[int, ...]) -> str:
    """Return `112x112x80`."""
    return "x".join(map(str, grid))
