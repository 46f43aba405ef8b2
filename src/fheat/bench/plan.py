"""What a run of `fheat bench` measures: what the user said, and for the rest sizes that take a minute or so."""

from dataclasses import dataclass
from typing import Literal

from fheat.bench.networks import EVERY, SMALL
from fheat.bench.settings import Precision, Triple
from fheat.inference.windows import Windows
from fheat.models.base import checked_patch_size

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
