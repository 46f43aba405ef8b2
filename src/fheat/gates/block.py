"""One block of a network, read from a forward pass: its layers and functions, and which results each of them takes."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fheat.gates.table import GateRow
from fheat.gates.trace import Shape, Trace, trace
from fheat.ops.gates import gates_of

MOST_STEPS = 24
"""Largest number of steps of a block that is shown layer by layer; the parts of a longer one count as one step each."""


@dataclass(frozen=True)
class BlockStep:
    """A layer or function of a block."""

    name: str
    """Path of a layer inside the block, the site of a gate, or the name of a function."""
    kind: str
    """Class of a layer; empty for a function."""
    group: str
    """Name of the part of the block that the step belongs to; empty for the block itself."""
    taken: int
    """Number of channels of what it takes."""
    channels: int
    """Number of channels of what it returns."""
    sources: tuple[int, ...]
    """Numbers of the steps whose results it takes; -1 is the input of the block."""
    kernel: Shape = ()
    """Lengths of the kernel of a convolution."""
    groups: int = 1
    """Number of groups of a convolution."""
    gate: GateRow | None = None


@dataclass(frozen=True)
class Block:
    """The steps of a block in the order in which they run."""

    path: str
    type: str
    """Name of its class."""
    grid: Shape
    channels: int
    """Number of channels of what the block takes."""
    steps: tuple[BlockStep, ...]
    groups: Mapping[str, str]
    """Class of each part of the block whose layers are steps of their own."""


def block_at(
    model: nn.Module, path: str, inputs: tuple[Tensor, ...], traced: Trace, rows: Mapping[str, GateRow]
) -> Block:
    """Return the block at a path, in its first call.

    Args:
        model: the network.
        path: path of a module that consists of several layers.
        inputs: example inputs of the network.
        traced: the steps of the network on these inputs.
        rows: the row of each gate, by site.
    """
    if path not in traced.calls:
        known = ", ".join(traced.calls)
        raise ValueError(f"block={path!r} is no module of several layers that runs: use one of {known}")
    module, modules = model.get_submodule(path), dict(model.named_modules())
    composed = {name: part for name, part in _parts(module) if is_composed(part)}
    groups = {name: type(part).__name__ for name, part in composed.items()}
    if len(traced.calls[path][0]) > MOST_STEPS:
        traced, groups = trace(model, inputs, [f"{path}.{name}" for name in composed]), {}
    call = traced.calls[path][0]
    site_of = {id(gate): site for site, gate in gates_of(model).items()}

    def step_at(number: int) -> BlockStep:
        step = traced.steps[number]
        site = site_of.get(id(modules.get(step.path)))
        inside = f"{step.caller.removeprefix(path).removeprefix('.')}."
        return BlockStep(
            name=site or step.path.removeprefix(f"{path}.") or step.kind,
            kind=step.kind if step.path else "",
            group=next((name for name in groups if inside.startswith(f"{name}.")), ""),
            taken=_channels(step.taken),
            channels=_channels(step.shape),
            sources=tuple(source - call.start if source in call else -1 for source in step.sources),
            kernel=step.kernel,
            groups=step.groups,
            gate=rows[site] if site else None,
        )

    taken = traced.steps[call.start].taken
    return Block(path, type(module).__name__, taken[2:], _channels(taken), tuple(map(step_at, call)), groups)


def blocks_of(module: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Return the path and module of each block of a stage; a module that is no stage has none.

    The blocks are of one class and consist of layers; their container is the stage itself or one of its children.
    """
    for name, candidate in (("", module), *module.named_children()):
        if isinstance(candidate, nn.ModuleList | nn.Sequential) and len(candidate):
            members = list(candidate.named_children())
            if len({type(member) for _, member in members}) == 1 and is_composed(members[0][1]):
                return [(".".join(filter(None, (path, name, index))), member) for index, member in members]
    return []


def first_repeated_part(block: nn.Module) -> str:
    """Return the name of the first part of which the block has another one of the same class; empty where none is."""
    parts = [(name, part) for name, part in block.named_children() if is_composed(part)]
    kinds = [type(part) for _, part in parts if not isinstance(part, nn.ModuleList)]
    return next((name for name, part in parts if kinds.count(type(part)) > 1), "")


def is_composed(module: nn.Module) -> bool:
    """Return whether a module has modules inside."""
    return any(True for _ in module.children())


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the direct children of a module, with the members of a list in the place of the list."""
    parts: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            parts += [(f"{name}.{index}", member) for index, member in child.named_children()]
        else:
            parts.append((name, child))
    return parts


def _channels(shape: Shape) -> int:
    """Return the channels of (N, C, *grid); a parameter that is taken by itself may have fewer axes."""
    return shape[1] if len(shape) > 1 else 1
