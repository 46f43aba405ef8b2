"""A gate behind a module of somebody else's network: the forward hook that applies it, and how outputs lie on a grid.

The module itself stays as it is. Its output has one of four axis orders; the hook brings it to (N, C, *grid) for the
gate and back. Where the axis order or the number of spatial axes is not given, it is known from the class of the module
or from the shape of an example output.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat

Network = TypeVar("Network", bound=nn.Module)
AxisOrder = Literal["channels_first", "channels_last", "tokens", "tokens_first"]
"""Order of the axes of an output: (N, C, *grid), (N, *grid, C), (N, T, C) or (T, N, C); N may be missing."""
AXIS_ORDERS = get_args(AxisOrder)
GridLengths = Sequence[int] | Callable[[int], Sequence[int]]
"""The grid that tokens lie on in row-major order, or a function from the number of tokens to that grid."""

_PLACED_BY = "placed_by"
"""Attribute of a gate that remembers its hook; copies of a network copy it."""
_CHANNELS_LAST = (
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Modules whose channels are the last axis, whatever stands before it."""


@dataclass(frozen=True)
class GateHook:
    """Forward hook that passes the output of a module, or the first element of a tuple, through the module's gate.

    The gate is looked up on the module that the hook is called with, so that a copy of a network uses its own gates. It
    sees (N, C, *grid) whatever the axis order is, and the result has the strides of the output. Identity case: with a
    closed gate the output is the same bit for bit; with a gate that returns its input itself, it is the same tensor.
    """

    site: str
    """Path of the module, for messages."""
    child: str
    """Name of the gate among the children of the module."""
    layout: AxisOrder
    dims: int
    """Number of spatial axes that the gate mixes over."""
    grid: GridLengths | None = None
    """Grid of the tokens; None where the output is no sequence of tokens."""
    prefix_tokens: int = 0
    """Number of leading tokens that do not pass through the gate."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options with which the gate was built beside its grid, for whoever builds it again."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Return the output with the gate applied."""
        value = self.gated_part(output)
        on_grid = self.on_grid(value)
        mixed = getattr(module, self.child)(on_grid)
        if mixed is on_grid:
            return output
        result = self._back(mixed, value)
        if result.stride() != value.stride():  # later code may call view(), and matrix products depend on strides
            result = torch.empty_like(value).copy_(result)
        if not isinstance(output, tuple):
            return result
        elements = (result, *output[1:])
        return type(output)._make(elements) if hasattr(output, "_make") else elements

    def gated_part(self, output: Any) -> Tensor:
        """Return the tensor of an output that the gate acts on, or raise `ValueError` where there is none."""
        value = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(value, Tensor):
            raise ValueError(f"{self.site!r} gives a {type(value).__name__} and a gate needs a tensor")
        if value.is_nested:
            raise ValueError(f"{self.site!r} gives a nested tensor, which has no grid: use enable_nested_tensor=False")
        if not value.is_floating_point():
            raise ValueError(f"{self.site!r} gives {value.dtype} and a gate needs a floating tensor")
        return value

    def on_grid(self, x: Tensor) -> Tensor:
        """Return the tensor `x` of an output as (N, C, *grid), without the prefix tokens."""
        spatial = 1 if self._tokens else self.dims
        if x.ndim not in (spatial + 1, spatial + 2):
            raise ValueError(
                f"{self.site!r} gives {x.ndim} axes, shape {tuple(x.shape)}: layout {self.layout!r} with "
                f"{self.dims} dims does not fit"
            )
        if not self._tokens:
            return x if self.layout == "channels_first" else x.movedim(-1, -1 - self.dims)
        body = x.narrow(self._axis, self.prefix_tokens, x.shape[self._axis] - self._prefix(x))
        by_token = body.movedim(self._axis, -1)
        return by_token.reshape(*by_token.shape[:-1], *self._grid(by_token.shape[-1]))

    def _back(self, y: Tensor, x: Tensor) -> Tensor:
        """Undo `on_grid`: return `y`, (N, C, *grid), in the axis order of the output `x`, with its prefix tokens."""
        if self.layout == "channels_first":
            return y
        if self.layout == "channels_last":
            return y.movedim(-1 - self.dims, -1)
        tokens = y.flatten(-self.dims).movedim(-1, self._axis)
        if not self.prefix_tokens:
            return tokens
        return torch.cat([x.narrow(self._axis, 0, self.prefix_tokens), tokens], dim=self._axis)

    @property
    def _tokens(self) -> bool:
        return self.layout in ("tokens", "tokens_first")

    @property
    def _axis(self) -> int:
        """Axis of the tokens, with or without a batch axis."""
        return 0 if self.layout == "tokens_first" else -2

    def _prefix(self, x: Tensor) -> int:
        tokens = x.shape[self._axis]
        if tokens <= self.prefix_tokens:
            raise ValueError(f"{self.site!r} gives {tokens} tokens and prefix_tokens={self.prefix_tokens} leaves none")
        return self.prefix_tokens

    def _grid(self, tokens: int) -> tuple[int, ...]:
        assert self.grid is not None
        grid = grid_of(tokens, self.grid, self.site)
        cells = torch.Size(grid).numel()
        if len(grid) != self.dims or cells != tokens:
            more = self.prefix_tokens + tokens - cells
            hint = f": prefix_tokens={more} would leave the first out" if tokens > cells else ""
            raise ValueError(f"{self.site!r} gives {tokens} tokens, grid {grid} has {cells} cells{hint}")
        return grid


def grid_of(tokens: int, grid: GridLengths, site: str) -> tuple[int, ...]:
    """Return the lengths of the grid for this number of tokens, or raise `ValueError` where `grid` gives none."""
    try:
        answer = grid(tokens) if callable(grid) else grid
        lengths = tuple(map(operator.index, answer))
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"grid of {site!r} fails for {tokens} tokens: {reason}") from error
    if not 1 <= len(lengths) <= 3 or min(lengths) < 1:
        raise ValueError(f"grid of {site!r} is {lengths}: give one to three whole numbers of at least 1")
    return lengths


def plan_hook(
    path: str,
    module: nn.Module,
    outputs: Sequence[Any] | None,
    *,
    dims: int | None = None,
    grid: GridLengths | None = None,
    own_grid: GridLengths | None = None,
    prefix_tokens: int = 0,
    layout: AxisOrder | None = None,
) -> GateHook:
    """Return the hook for the module at `path`.

    Args:
        path: path of the module in its network.
        module: the module that shall carry the gate.
        outputs: what its calls return in a forward pass on an example; None where there is no example.
        dims: number of spatial axes, where given.
        grid: grid of the tokens of all modules, where given.
        own_grid: grid of the tokens of this module, where given.
        prefix_tokens: number of leading tokens that do not pass through the gate.
        layout: axis order of the outputs, where given.

    Raises `ValueError` where the outputs cannot pass through a gate, or too little is known about them.
    """
    if outputs is not None and not outputs:
        raise ValueError(f"{path!r} is never called in a forward pass on this example")
    known = _dims_by_class(module)
    if known is not None:
        if own_grid is not None:
            raise ValueError(f"{path!r} is a {type(module).__name__} and has a grid already: give None as its grid")
        layout, dims, grid = "channels_first", known, None
    else:
        grid = own_grid if own_grid is not None else grid
        layout = layout or _usual_layout(module, outputs, grid)
        if layout not in ("tokens", "tokens_first"):
            grid = None
        elif grid is None:
            raise ValueError(f"{path!r} gives tokens: give grid=, the grid they lie on")
    if grid is not None and not callable(grid):
        grid = _checked_grid(grid, path)
        if dims not in (None, len(grid)):
            raise ValueError(f"{path!r} has the grid {grid} and dims={dims}: leave dims out")
    if isinstance(grid, tuple):
        dims = len(grid)
    dims = dims or _dims_of_example(path, module, outputs, grid, prefix_tokens, layout)
    hook = GateHook(path, _free_name(module), layout, dims, grid, prefix_tokens)
    for output in outputs or ():
        cells = hook.on_grid(hook.gated_part(output)).shape[-dims:]
        if cells.numel() == 1:
            raise ValueError(f"{path!r} gives a grid of one cell, where there is nothing to mix")
    return hook


def new_gate(hook: GateHook, **options: Any) -> FractionalHeat:
    """Return a gate for this hook; `options` take precedence over those that the hook states."""
    size = {"size": hook.grid} if isinstance(hook.grid, tuple) else {}
    return FractionalHeat(dims=hook.dims, **(size | dict(hook.options) | options))


def attach(module: nn.Module, gate: FractionalHeat, hook: GateHook) -> None:
    """Add the gate to the module as a child, and the hook that applies it."""
    module.add_module(hook.child, gate)
    module.register_forward_hook(hook)
    vars(gate)[_PLACED_BY] = hook


def placed_by(gate: FractionalHeat) -> GateHook | None:
    """Return the hook with which a gate was attached, also where it was detached later; None for any other gate."""
    hook: GateHook | None = vars(gate).get(_PLACED_BY)
    return hook


def with_gates_of(network: Network, other: nn.Module) -> Network:
    """Place in a network, in place, new gates where `other`, a network of its kind, has had gates placed; return it.

    Gates that were retired in `other` are placed too: with a network that was just built, the result is `other` as it
    was before training, its gates open.
    """
    for gate in other.modules():
        hook = placed_by(gate) if isinstance(gate, FractionalHeat) else None
        if hook is not None:
            place(network, hook)
    return network


def place(model: nn.Module, hook: GateHook) -> None:
    """Attach a new gate to the module that the hook names, in place."""
    module = model.get_submodule(hook.site)
    attach(module, new_gate(hook).train(module.training), hook)


def gate_hooks(module: nn.Module) -> dict[int, GateHook]:
    """Return the gate hooks of one module, by their key among its forward hooks."""
    return {key: hook for key, hook in module._forward_hooks.items() if isinstance(hook, GateHook)}


def detach(model: nn.Module, gate: FractionalHeat) -> bool:
    """Remove the hook that applies this gate, in place, and return whether there was one; the gate stays a child."""
    for module in model.modules():
        for key, hook in gate_hooks(module).items():
            if getattr(module, hook.child, None) is gate:
                del module._forward_hooks[key]
                return True
    return False


def _checked_grid(grid: Any, path: str) -> tuple[int, ...]:
    if not isinstance(grid, Sequence) or not all(isinstance(length, int) for length in grid):
        raise ValueError(
            f"grid={grid!r} of {path!r} is no grid: give whole numbers, or a function from the tokens to it"
        )
    return grid_of(math.prod(grid), grid, path)


def _dims_by_class(module: nn.Module) -> int | None:
    """Return 1, 2 or 3 for classes of `torch.nn`, and classes derived from them, whose names end in 1d, 2d or 3d."""
    if isinstance(module, nn.BatchNorm1d):  # it also takes (N, C), which has no grid
        return None
    for kind in type(module).__mro__:
        end = re.search(r"([123])d$", kind.__name__)
        if end and kind.__module__.startswith("torch.nn.modules."):
            return int(end[1])
    return None


def _usual_layout(module: nn.Module, outputs: Sequence[Any] | None, grid: GridLengths | None) -> AxisOrder:
    """Return the axis order that the class of the module suggests."""
    if grid is not None:
        orders = [part.batch_first for part in module.modules() if hasattr(part, "batch_first")]
        return "tokens" if all(orders) else "tokens_first"
    if not isinstance(module, _CHANNELS_LAST):
        return "channels_first"
    few_axes = outputs is None or (isinstance(outputs[0], Tensor) and outputs[0].ndim < 4)
    return "tokens" if few_axes else "channels_last"


def _dims_of_example(
    path: str,
    module: nn.Module,
    outputs: Sequence[Any] | None,
    grid: GridLengths | None,
    prefix_tokens: int,
    layout: AxisOrder,
) -> int:
    """Return the number of spatial axes that an example output shows, where it leaves no doubt."""
    kind = type(module).__name__
    if not outputs or not isinstance(outputs[0], Tensor):
        raise ValueError(f"{path!r} is a {kind}, whose grid is not known: give dims=, grid= or example=")
    first = outputs[0]
    if callable(grid):
        tokens = first.shape[0 if layout == "tokens_first" else -2] - prefix_tokens
        return len(grid_of(tokens, grid, path))
    if first.ndim not in (4, 5):
        raise ValueError(
            f"{path!r} is a {kind} and gives shape {tuple(first.shape)}, with or without a grid: "
            "give grid= if these are tokens, dims= if it is a grid"
        )
    return first.ndim - 2


def _free_name(module: nn.Module) -> str:
    """Return a name for the gate that the module has no attribute of."""
    names = ["gate", "heat_gate", *(f"heat_gate_{number}" for number in range(2, 100))]
    return next(name for name in names if not hasattr(module, name))
