"""What is alike for all that is measured in a run, and how lists on the command line are read."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch

from fheat.bench.networks import EVERY, SMALL
from fheat.bench.timing import Work, interleaved
from fheat.inference.windows import Windows
from fheat.networks.base import checked_patch_size
from fheat.system.progress import Progress

Precision = Literal["float32", "bfloat16"]
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Conditions:
    """Device, precision and number of turns of a benchmark.

    `notes` collects what the reader of a result must know and the numbers do not say.
    """

    device: str = "cpu"
    rounds: int = 5
    precision: Precision = "float32"
    seed: int = 0
    progress: Progress | None = None
    notes: list[str] = field(default_factory=list)

    def times(self, candidates: dict[str, Work], *, warm_up: int = 2, capture: bool = True) -> dict[str, float]:
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

    def forward(self, network: Callable[[torch.Tensor], object], x: torch.Tensor) -> Work:
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


What = Literal["all", "operator", "step", "window", "scan"]
Part = Literal["operator", "step", "window", "scan"]
PARTS: tuple[Part, ...] = ("operator", "step", "window", "scan")

LA: Triple = (112, 112, 80)
QUICK: Triple = (64, 64, 48)
_ROUNDS: dict[str, dict[Part, int]] = {
    "cuda": {"operator": 20, "step": 10, "window": 20, "scan": 3},
    "cpu": {"operator": 25, "step": 5, "window": 5, "scan": 3},
}
_QUICK_ROUNDS: dict[Part, int] = {"operator": 9, "step": 3, "window": 3, "scan": 3}


@dataclass(frozen=True)
class Plan:
    """The options of `fheat bench`, None or empty where the user left the choice; the methods below make it."""

    what: What = "all"
    device: str = "cpu"
    models: tuple[str, ...] = ()
    rounds: int | None = None
    precision: Precision | None = None
    patch: Triple | None = None
    batch: int | None = None
    methods: tuple[str, ...] = ("cse", "supervised")
    sizes: tuple[Triple, ...] = ()
    channels: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    scan: Triple | None = None
    stride: Triple | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} is not usable: give 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} is negative: give 0 or more")
        if self.patch is not None:
            checked_patch_size(self.patch)
        if self.scan is not None and min(self.scan) < 1:
            raise ValueError(f"scan={self.scan} is not a size: give three whole numbers from 1 on")
        if (self.sizes or self.channels or self.batches) and self.what != "window":
            raise ValueError("sizes, channels and batches belong to 'fheat bench window'")

    @property
    def quick(self) -> bool:
        """Whether everything is asked for at once, on a processor that would take long for it."""
        return self.what == "all" and self.kind == "cpu"

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is measured, in order."""
        return PARTS if self.what == "all" else (self.what,)

    def rounds_of(self, part: Part) -> int:
        """Return measured turns: fewer where all is asked for."""
        return self.rounds or (_QUICK_ROUNDS[part] if self.quick else _ROUNDS[self.kind][part])

    def precision_of(self, part: Part) -> Precision:
        """Return float32, but for training on a GPU, which uses bfloat16 by default."""
        return self.precision or ("bfloat16" if part == "step" and self.kind == "cuda" else "float32")

    def patch_of(self, part: Part) -> Triple:
        """Return the LA patch, but on a CPU a smaller one for training and where all is asked for."""
        small = self.kind == "cpu" and (self.quick or part == "step")
        return self.patch or (QUICK if small else LA)

    def batch_of(self, part: Part) -> int:
        """Return labelled scans of a step, windows of a scan's forward pass, else windows."""
        return self.batch or {"operator": 1, "step": 2, "window": 1, "scan": 4}[part]

    def models_of(self, part: Part) -> tuple[str, ...]:
        """Return the networks to compare."""
        if self.models:
            return self.models
        if part == "step":
            return ("fheat_seg", "light_unetr") if self.kind == "cpu" else ("fheat_seg", "light_unetr", "segresnet")
        if self.quick:
            return (*SMALL, "segresnet")
        return SMALL if self.sizes or self.batches else EVERY

    def channels_of(self) -> tuple[int, ...]:
        """Return the channels of the gate that are timed beside growing windows."""
        return self.channels or ((24, 48, 96, 192) if self.sizes else ())

    def scan_of(self) -> Triple:
        """Return the size of the scan: one of LA, or one that fits a smaller patch."""
        x, y, z = self.patch_of("scan")
        return self.scan or ((192, 142, 88) if (x, y, z) == LA else (x * 3 // 2, y * 5 // 4, z * 4 // 3))

    def windows_of(self) -> Windows:
        """Return window and stride: LA's test stride, or a quarter of a smaller patch."""
        x, y, z = patch = self.patch_of("scan")
        return Windows(patch, self.stride or ((18, 18, 4) if patch == LA else (x // 4, y // 4, z // 4)))

    def longest_scan(self) -> float:
        """Return the seconds beyond which a network is timed on a part of the scan."""
        return 5.0 if self.quick else 15.0
