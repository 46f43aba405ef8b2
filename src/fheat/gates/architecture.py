"""The architecture of a U-shaped network, read from one forward pass of the network itself.

The direct children of the network are its parts. A part that consists of equal blocks is a stage, a part that changes
the grid leads a level down or up, and a function that joins the results of two parts makes a skip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

from torch import nn

from fheat.gates.block import Block, block_at, blocks_of, first_repeated_part
from fheat.gates.dry_run import Inputs, example_inputs
from fheat.gates.table import GateRow, allocation_at
from fheat.gates.trace import Shape, Step, Trace, trace

PartKind = Literal["stem", "stage", "down", "up", "head", "other"]


@dataclass(frozen=True)
class Part:
    """A direct child of the network, with the shape of its result."""

    name: str
    kind: PartKind
    type: str
    """Name of its class."""
    level: int
    """Number of parts down minus number of parts up so far, this one included."""
    grid: Shape
    channels: int
    blocks: int = 0
    """Number of blocks of a stage."""
    block: str = ""
    """Class of the blocks of a stage."""
    gates: tuple[GateRow, ...] = ()
    """The gates inside it."""


@dataclass(frozen=True)
class Level:
    """A level of the U: the grid that arrives on the way down, and the channels of its stages.

    A stage may compute on a larger grid, because odd lengths are padded before they are halved.
    """

    grid: Shape
    channels: int


@dataclass(frozen=True)
class Skip:
    """The result of a part that is joined to a later one, by `add` or `cat`, before it enters the part `target`."""

    source: str
    target: str
    how: str


@dataclass(frozen=True)
class LearnedInput:
    """A parameter of the network itself that is joined to a result before it enters the part `target`."""

    name: str
    shape: Shape
    target: str
    how: str


@dataclass(frozen=True)
class Architecture:
    """A U-shaped network: levels from the finest to the coarsest grid, parts in the order in which they run."""

    name: str
    input: Shape
    """Channels and grid of the input."""
    output: Shape
    """Channels and grid of the output."""
    parameters: int
    levels: tuple[Level, ...]
    parts: tuple[Part, ...]
    skips: tuple[Skip, ...]
    learned_inputs: tuple[LearnedInput, ...]
    block: Block

    @property
    def stages(self) -> tuple[Part, ...]:
        """The stages, in the order in which they run."""
        return tuple(part for part in self.parts if part.kind == "stage")


def architecture(model: nn.Module, shape: Inputs | None = None, *, block: str | None = None) -> Architecture:
    """Return the architecture of a U-shaped network whose stages are its direct children.

    Args:
        model: the network; it is not changed.
        shape: input shape (N, C, *grid), or a tuple of one example input. By default the input that the network states.
        block: path of the block to show. By default it is the first block of the last stage with a gate, or of the
            deepest stage where there is no gate; of a block that has several equal parts it is the first of them.

    Raises `ValueError` for a network that is built in another way, such as MONAI's networks.
    """
    inputs = example_inputs(model, shape)
    if inputs is None:
        raise ValueError(f"shape is needed: {type(model).__name__} does not say which input it is made for")
    traced = trace(model, inputs)
    rows = {row.site: row for row in allocation_at(model, traced.gate_calls)}
    parts = _parts(model, traced, rows)
    skips, learned = _joins(traced, [part.name for part in parts])
    return Architecture(
        name=getattr(getattr(model, "spec", None), "name", type(model).__name__),
        input=tuple(inputs[0].shape[1:]),
        output=(parts[-1].channels, *parts[-1].grid),
        parameters=sum(value.numel() for value in model.parameters()),
        levels=_levels(parts),
        parts=parts,
        skips=skips,
        learned_inputs=learned,
        block=block_at(model, _block_to_show(model, parts) if block is None else block, inputs, traced, rows),
    )


def _parts(model: nn.Module, traced: Trace, rows: Mapping[str, GateRow]) -> tuple[Part, ...]:
    """Return the direct children that ran, in order, with their kinds and levels."""
    steps: dict[str, list[Step]] = {}
    for step in traced.steps:
        if name := _part_of(step):
            steps.setdefault(name, []).append(step)
    parts: list[Part] = []
    level = 0
    for name, inside in steps.items():
        module = model.get_submodule(name)
        blocks = [type(block).__name__ for _, block in blocks_of(module)]
        kind = "stage" if blocks else _kind(inside, first=not parts, last=len(parts) == len(steps) - 1)
        level += {"down": 1, "up": -1}.get(kind, 0)
        gates = tuple(row for site, row in rows.items() if f"{site}.".startswith(f"{name}."))
        _, channels, *grid = inside[-1].shape
        shown = len(blocks), blocks[0] if blocks else "", gates
        parts.append(Part(name, kind, type(module).__name__, level, tuple(grid), channels, *shown))
    kinds = [part.kind for part in parts]
    if "stage" not in kinds or "down" not in kinds or kinds.count("down") != kinds.count("up"):
        listed = ", ".join(f"{part.name} ({part.kind})" for part in parts)
        raise ValueError(
            f"{type(model).__name__} is no U whose stages are its direct children; its parts are {listed}: "
            "give a network such as fheat_seg"
        )
    return tuple(parts)


def _part_of(step: Step) -> str:
    """Return the name of the direct child in which a step happened; empty outside of them."""
    return "" if step.kind in ("input", "parameter") else (step.caller or step.path).split(".")[0]


def _kind(inside: Sequence[Step], *, first: bool, last: bool) -> PartKind:
    if first or last:
        return "stem" if first else "head"
    before, after = (prod(shape[2:]) for shape in (inside[0].taken, inside[-1].shape))
    return "down" if after < before else "up" if after > before else "other"


def _joins(traced: Trace, order: Sequence[str]) -> tuple[tuple[Skip, ...], tuple[LearnedInput, ...]]:
    """Return the skips and the learned inputs: functions between the parts that take the results of several sources.

    The origins of a step are the parts or parameters that its value comes from without another part in between. Where
    a function joins several, the part that ran last is the main way and the others are joined to it.
    """
    skips: list[Skip] = []
    learned: list[LearnedInput] = []
    origins: list[set[str]] = []
    shapes = {step.path: step.shape for step in traced.steps if step.kind == "parameter"}
    joined: dict[str, str] = {}  # origins that were joined since the last part, and the function that did it
    for step in traced.steps:
        sources = [origins[number] for number in step.sources]
        if part := _part_of(step):
            origins.append({part})
            for name, how in joined.items():
                if name in shapes:
                    learned.append(LearnedInput(name, shapes[name][1:], part, how))
                else:
                    skips.append(Skip(name, part, how))
            joined = {}
            continue
        origins.append({step.path} if step.kind == "parameter" else set().union(*sources))
        if len(sources) > 1 and len(origins[-1]) > 1:
            *others, _ = sorted(origins[-1], key=lambda name: order.index(name) if name in order else -1)
            joined |= dict.fromkeys(others, step.kind)
    return tuple(skips), tuple(learned)


def _levels(parts: Sequence[Part]) -> tuple[Level, ...]:
    levels: list[Level] = []
    for before, part in pairwise(parts):
        if part.kind == "stage" and part.level == len(levels):
            levels.append(Level(before.grid, part.channels))
    return tuple(levels)


def _block_to_show(model: nn.Module, parts: Sequence[Part]) -> str:
    stages = [part for part in parts if part.kind == "stage"]
    gated = [part for part in stages if part.gates]
    stage = gated[-1] if gated else max(stages, key=lambda part: part.level)
    path, block = blocks_of(model.get_submodule(stage.name), stage.name)[0]
    repeated = first_repeated_part(block)
    return f"{path}.{repeated}" if repeated else path
