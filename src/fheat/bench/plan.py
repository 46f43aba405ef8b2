"""The plan of a benchmark: what is measured, at which sizes and on which networks, which are built here by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import torch

from fheat.bench.timing import Candidate, Precision, without_kernels
from fheat.gates.retire import retire
from fheat.inference.windows import LARGEST_BATCH, Triple, Windows
from fheat.networks.base import SegmentationNetwork, checked_patch_size
from fheat.networks.padded import compile_bodies
from fheat.networks.registry import create_model
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput

What = Literal["all", "operator", "step", "window", "scan", "start", "read", "cohort"]
Part = Literal["operator", "step", "window", "scan", "start", "read", "cohort"]
PARTS: tuple[Part, ...] = ("operator", "step", "window", "scan", "start", "read", "cohort")

EVERY_NETWORK: Final = (
    "fheat_seg/retired",
    "fheat_seg/survivor",
    "fheat_seg/open",
    "fheat_seg_l/retired",
    "light_unetr",
    "light_unetr_l",
    "segresnet",
    "dynunet",
    "swin_unetr",
    "mednext",
)
SMALL_NETWORKS: Final = ("fheat_seg/retired", "fheat_seg/survivor", "fheat_seg/open", "light_unetr")
GATE_STATES: Final = ("open", "survivor", "retired")
"""States of the gates that may follow the name of a network, after a slash."""
PLAIN: Final = "/plain"
"""Ending of the name of a network that is to run without the fused kernels of this package."""
COMPILED: Final = "/compiled"
"""Ending of the name of a network whose body `torch.compile` is to run."""
LA_PATCH: Triple = (112, 112, 80)
"""Patch of the networks for the LA dataset."""
SMALL_PATCH: Triple = (64, 64, 48)
"""Patch that a CPU can train on in reasonable time."""
_ROUNDS: dict[str, dict[Part, int]] = {
    "cuda": {"operator": 20, "step": 10, "window": 20, "scan": 3, "start": 3, "read": 5, "cohort": 1},
    "cpu": {"operator": 25, "step": 5, "window": 5, "scan": 3, "start": 3, "read": 5, "cohort": 1},
}
_QUICK_ROUNDS: dict[Part, int] = {"operator": 9, "step": 3, "window": 3, "scan": 3, "start": 1, "read": 3, "cohort": 1}
_CASES: dict[str, dict[str, int]] = {"cuda": {"read": 8, "cohort": 20}, "cpu": {"read": 8, "cohort": 4}}
_QUICK_CASES: Final = 4
_STORED_NETWORK: Final = "fheat_seg/survivor"
"""The network with which starts and cohorts are timed: FHEAT-Seg with the gates that training usually leaves open."""


@dataclass(frozen=True)
class Plan:
    """The options of `fheat bench`. The methods choose where an option is None or empty."""

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
    cases: int | None = None
    data: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("batch", 1), ("cases", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} is not usable: give {least} or more")
        if self.batch is not None and self.batch > LARGEST_BATCH:
            raise ValueError(f"batch={self.batch} is not usable: give at most {LARGEST_BATCH:,}")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} is negative: give 0 or more")
        if self.patch is not None:
            checked_patch_size(self.patch)
        if self.scan is not None and min(self.scan) < 1:
            raise ValueError(f"scan={self.scan} is not a size: give three whole numbers from 1 on")
        if (self.sizes or self.channels or self.batches) and self.what != "window":
            raise ValueError("sizes, channels and batches belong to 'fheat bench window'")
        if self.cases is not None and not {"read", "cohort"} & set(self.parts):
            raise ValueError("cases belongs to 'fheat bench read' and 'fheat bench cohort'")
        if self.data is not None and "read" not in self.parts:
            raise ValueError("data belongs to 'fheat bench read': all other parts make their own scans")

    @property
    def quick(self) -> bool:
        """Whether all parts are asked for at once on a CPU. The plan then has smaller sizes."""
        return self.what == "all" and self.kind == "cpu"

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts that are measured, in order."""
        return PARTS if self.what == "all" else (self.what,)

    def rounds_of(self, part: Part) -> int:
        """Return the number of measured turns; it is smaller where all parts are asked for."""
        return self.rounds or (_QUICK_ROUNDS[part] if self.quick else _ROUNDS[self.kind][part])

    def precision_of(self, part: Part) -> Precision:
        """Return the precision: bfloat16 for training on a GPU, where that is the default, else float32.

        A cohort is always float32 on a CPU, because torch runs it there.
        """
        if part == "cohort" and self.kind == "cpu":
            return "float32"
        return self.precision or ("bfloat16" if part == "step" and self.kind == "cuda" else "float32")

    def patch_of(self, part: Part) -> Triple:
        """Return the patch: that of LA or, for training on a CPU and where all parts are asked for, a smaller one."""
        small = self.kind == "cpu" and (self.quick or part == "step")
        return self.patch or (SMALL_PATCH if small else LA_PATCH)

    def batch_of(self, part: Part) -> int:
        """Return the batch size: number of labelled scans in a training step, else number of windows in a pass."""
        return self.batch or {"step": 2, "scan": 4}.get(part, 1)

    def models_of(self, part: Part) -> tuple[str, ...]:
        """Return the networks to compare.

        Starts and cohorts take long, so that of all parts together these have one network only: the first of `models`
        that a model folder can hold.
        """
        if part in ("start", "cohort") and self.what == "all":
            stored = [name for name in self.models if not name.endswith((PLAIN, COMPILED))]
            return (*stored, _STORED_NETWORK)[:1]
        if self.models:
            return self.models
        if part in ("start", "cohort"):
            return (_STORED_NETWORK,)
        if part == "step":
            return ("fheat_seg", "light_unetr") if self.kind == "cpu" else ("fheat_seg", "light_unetr", "segresnet")
        if self.quick:
            return (*SMALL_NETWORKS, "segresnet")
        return SMALL_NETWORKS if self.sizes or self.batches else EVERY_NETWORK

    def channels_of(self) -> tuple[int, ...]:
        """Return the numbers of channels for which a gate is timed beside growing windows."""
        return self.channels or ((24, 48, 96, 192) if self.sizes else ())

    def scan_of(self) -> Triple:
        """Return the shape of the scan: that of one LA scan, or a smaller one that suits a smaller patch."""
        x, y, z = self.patch_of("scan")
        return self.scan or ((192, 142, 88) if (x, y, z) == LA_PATCH else (x * 3 // 2, y * 5 // 4, z * 4 // 3))

    def windows_of(self) -> Windows:
        """Return window and stride: the test stride of LA, or a quarter of a smaller patch."""
        x, y, z = patch = self.patch_of("scan")
        return Windows(patch, self.stride or ((18, 18, 4) if patch == LA_PATCH else (x // 4, y // 4, z // 4)))

    def cases_of(self, part: Part) -> int:
        """Return the number of scans that are read, or that a cohort has."""
        return self.cases or (_QUICK_CASES if self.quick else _CASES[self.kind][part])

    def longest_scan(self) -> float:
        """Return the number of seconds beyond which a network is timed on a part of the scan only."""
        return 5.0 if self.quick else 15.0


@dataclass
class Networks:
    """The networks that could be built, by name and in the order asked for, and why others could not."""

    built: dict[str, SegmentationNetwork] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Networks that could not be built, each with the reason."""


def build(names: Sequence[str], patch: Sequence[int], device: str, seed: int = 0) -> Networks:
    """Return networks with fresh weights, on a device, in evaluation mode.

    A name is one of the registry. For a network with gates a state may follow: `/open` as built, `/survivor` with all
    gates but the last closed and retired, `/retired` with all gates retired. With `/plain` at the end it is the same
    network, which `in_its_way` runs without fused kernels, and with `/compiled` one whose body `torch.compile` runs. A
    network whose library is not installed is listed as missing. Raises `ValueError` for an unknown name, and `BadInput`
    where no network can be built.
    """
    networks = Networks()
    for name in names:
        try:
            torch.manual_seed(seed)
            networks.built[name] = _build(name, patch).to(device).eval()
        except BadInput as error:
            networks.missing[name] = str(error)
    if not networks.built:
        raise BadInput(", ".join(names), "none can be built", next(iter(networks.missing.values()), "name one"))
    return networks


def _build(name: str, patch: Sequence[int]) -> SegmentationNetwork:
    known, _, state = name.removesuffix(PLAIN).removesuffix(COMPILED).partition("/")
    model = create_model(known, patch_size=patch)
    if name.endswith(COMPILED) and not compile_bodies(model):
        raise ValueError(
            f"network {name!r} is unknown: only networks of a body and a head, as segresnet, have {COMPILED}"
        )
    gates = gates_of(model)
    if state and (state not in GATE_STATES or not gates):
        states = ", /".join(GATE_STATES)
        raise ValueError(f"network {name!r} is unknown: only networks with gates have /{states}, and all have {PLAIN}")
    if state in ("survivor", "retired"):
        for gate in list(gates.values())[: -1 if state == "survivor" else None]:
            assert gate.delta is not None
            gate.delta.data.fill_(-0.1)
        model = retire(model)
    return model  # type: ignore[return-value]


def in_its_way(name: str, run: Candidate) -> Candidate:
    """Return `run`, the work of the network of this name, without fused kernels if that is what the name asks for."""
    return without_kernels(run) if name.endswith(PLAIN) else run


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Return the numbers in a text such as `1,2,4`: whole numbers from 1 on, ascending."""
    try:
        values = tuple(int(word) for word in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1 or any(b <= a for a, b in pairwise(values)):
        raise ValueError(f"{name}={text!r} is not usable: give ascending whole numbers such as 1,2,4,8")
    return values


def grids(text: str, name: str) -> tuple[Triple, ...]:
    """Return the grids in a text such as `64,96,112x112x80`: at least two, ascending in voxels; `64` is a cube."""
    sizes: list[Triple] = []
    try:
        for word in text.split(","):
            sides = [int(side) for side in word.split("x")]
            sizes.append(checked_patch_size(sides * 3 if len(sides) == 1 else sides))
    except ValueError:
        sizes = []
    volumes = [x * y * z for x, y, z in sizes]
    if len(sizes) < 2 or any(b <= a for a, b in pairwise(volumes)):
        example = "two or more ascending sizes of at least 32 such as 64,96,112x112x80"
        raise ValueError(f"{name}={text!r} is not usable: give {example}")
    return tuple(sizes)
