"""Put gates into somebody else's network without changing what it computes."""

import copy
import math
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fheat.gates.choose import Choice, Sites, choose, usual_sites
from fheat.gates.hook import LAYOUTS, AxisOrder, GateHook, GridLengths, attach, grid_of
from fheat.gates.sites import Inputs, checked_inputs, device_of, run_copy
from fheat.ops.heat import FractionalHeat

Network = TypeVar("Network", bound=nn.Module)

# Their channels are the last axis, whatever stands before it.
_CHANNELS_LAST = (
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def instrument(
    model: Network,
    sites: Sites | None = None,
    *,
    initial_strength: float = 0.0,
    dims: int | None = None,
    grid: GridLengths | None = None,
    prefix_tokens: int = 0,
    layout: AxisOrder | None = None,
    example: Inputs | None = None,
    **gate_options: Any,
) -> Network:
    """Return a deep copy of any network in which the output of each chosen module passes through a gate.

    The module gets a `FractionalHeat` as its child `gate` (`heat_gate` where that name is taken) and a forward hook
    that applies it: all names and weights stay, `state_dict()` is the original's plus two scalars for each gate.
    Identity case: `initial_strength=0`, the default, starts all gates closed. Outputs and gradients are the original's
    bit for bit, and so are those of `fheat.retire(instrument(model))`. **Zero is absorbing**: training never opens a
    closed gate. Closed gates are for `fheat.probe`, which says where opening would lower the loss; to let training
    decide, instrument those sites with `initial_strength=0.03`, which changes the network a little.

    Args:
        model: the network; it is not changed.
        sites: a module path as in `model.named_modules()`; a pattern, `*` for anything within one part of the path,
            `**` for any number of parts; a module type; a predicate `(path, module) -> bool`; several of these; or a
            mapping from paths or patterns to the grids their tokens lie on (None: no tokens). None takes every
            convolution with a kernel larger than one, and with `grid` every `nn.MultiheadAttention` too.
        initial_strength: D that the gates start with.
        dims: spatial axes of outputs. Known for the layers of `torch.nn` that end in 1d, 2d, 3d, and from `example`.
        grid: where outputs are tokens, the grid they lie on, row by row, or a function from their number to it.
        prefix_tokens: leading tokens, such as a class token, that pass by the gate.
        layout: `channels_first` (N, C, *grid), `channels_last` (N, *grid, C), `tokens` (N, T, C) or `tokens_first`
            (T, N, C), where it is not known from the class. With a grid, tokens are assumed.
        example: an input shape or a tuple of inputs, for one pass that shows what every module gives. One that is
            never called or has nothing to mix is refused if its path was given, and left out if a rule chose it.
        gate_options: `alpha`, `strength`, `initial_theta`, `transform` of `FractionalHeat`.

    A module that is called several times, or stands at several paths, has one gate for all its calls. Of a tuple the
    first element passes through the gate. The gate of an `nn.Sequential` sits at its last layer, and is named so.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown: use {', '.join(LAYOUTS)}")
    if prefix_tokens < 0:
        raise ValueError(f"prefix_tokens={prefix_tokens} is negative: give the number of leading tokens")
    if dims not in (None, 1, 2, 3):
        raise ValueError(f"dims={dims!r} is not supported: use 1, 2 or 3 spatial axes")
    copied = _copied(model)
    chosen = choose(copied, usual_sites(copied, attention=grid is not None) if sites is None else sites)
    for choice, hook in _planned_hooks(copied, chosen, example, dims, grid, prefix_tokens, layout):
        size = {"size": hook.grid} if isinstance(hook.grid, tuple) else {}
        gate = FractionalHeat(dims=hook.dims, initial_strength=initial_strength, **(size | gate_options))
        attach(choice.module, _placed(gate, choice.module, copied), hook)
    return copied


def _planned_hooks(
    model: nn.Module, chosen: list[Choice], example: Inputs | None, *how: Any
) -> list[tuple[Choice, GateHook]]:
    """Return the hook of each choice that can take a gate; raise ValueError for those asked for, or if none can."""
    inputs = checked_inputs(model, example)
    outputs = None if inputs is None else _outputs(model, [choice.path for choice in chosen], inputs)
    planned, refused = [], []
    for choice in chosen:
        try:
            planned.append((choice, _planned(choice, None if outputs is None else outputs[choice.path], *how)))
        except ValueError as reason:
            if choice.named or outputs is None:
                raise
            refused.append(str(reason))
    if not planned:
        raise ValueError(f"none of the {len(chosen)} chosen modules can take a gate: {refused[0]}")
    return planned


def _copied(model: Network) -> Network:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{type(model).__name__} cannot be copied: {reason}") from error


def _outputs(model: nn.Module, paths: list[str], inputs: tuple[Tensor, ...]) -> dict[str, list[Any]]:
    """Return what every call of the modules at these paths gives, tensors without values."""

    def listen(copied: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[Any]]:
        seen: dict[str, list[Any]] = {path: [] for path in paths}
        for path, calls in seen.items():
            copied.get_submodule(path).register_forward_hook(
                lambda module, inputs, output, calls=calls: calls.append(_without_values(output))
            )
        copied(*inputs)
        return seen

    return run_copy(model, inputs, listen)


def _without_values(output: Any) -> Any:
    value = output[0] if isinstance(output, tuple) and output else output
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _planned(
    choice: Choice,
    seen: list[Any] | None,
    dims: int | None,
    grid: GridLengths | None,
    prefix: int,
    layout: AxisOrder | None,
) -> GateHook:
    """Return the hook for one site, or raise ValueError where what it gives cannot pass through a gate."""
    path, module = choice.path, choice.module
    if seen == []:
        raise ValueError(f"{path!r} is never called in a forward pass on this example")
    known = _dims_by_name(module)
    if known is not None:
        if choice.grid is not None:
            raise ValueError(f"{path!r} is a {type(module).__name__} and has a grid already: give None as its grid")
        layout, dims, grid = "channels_first", known, None
    else:
        grid = choice.grid if choice.grid is not None else grid
        layout = layout or _usual_layout(module, seen, grid)
        if layout not in ("tokens", "tokens_first"):
            grid = None
        elif grid is None:
            raise ValueError(f"{path!r} gives tokens: give grid=, the grid they lie on")
    if grid is not None and not callable(grid):
        grid = _checked_grid(grid, path)
        if dims not in (None, len(grid)):
            raise ValueError(f"{path!r} has the grid {grid} and dims={dims}: leave dims out")
    dims = len(grid) if isinstance(grid, tuple) else dims or _dims_seen(choice, seen, grid, prefix, layout)
    hook = GateHook(path, _free_name(module), layout, dims, grid, prefix)
    for output in seen or ():
        cells = hook.on_grid(hook.gated_part(output)).shape[-dims:]
        if cells.numel() == 1:
            raise ValueError(f"{path!r} gives a grid of one cell, where there is nothing to mix")
    return hook


def _checked_grid(grid: Any, path: str) -> tuple[int, ...]:
    if not isinstance(grid, Sequence) or not all(isinstance(length, int) for length in grid):
        raise ValueError(
            f"grid={grid!r} of {path!r} is no grid: give whole numbers, or a function from the tokens to it"
        )
    return grid_of(math.prod(grid), grid, path)


def _dims_by_name(module: nn.Module) -> int | None:
    """Return 1, 2, 3 for layers of `torch.nn` (and what is derived from them) whose names end in 1d, 2d, 3d."""
    if isinstance(module, nn.BatchNorm1d):  # also takes (N, C), without a grid
        return None
    for kind in type(module).__mro__:
        end = re.search(r"([123])d$", kind.__name__)
        if end and kind.__module__.startswith("torch.nn.modules."):
            return int(end[1])
    return None


def _usual_layout(module: nn.Module, seen: list[Any] | None, grid: GridLengths | None) -> AxisOrder:
    if grid is not None:
        orders = [part.batch_first for part in module.modules() if hasattr(part, "batch_first")]
        return "tokens" if all(orders) else "tokens_first"
    if not isinstance(module, _CHANNELS_LAST):
        return "channels_first"
    few_axes = seen is None or (isinstance(seen[0], Tensor) and seen[0].ndim < 4)
    return "tokens" if few_axes else "channels_last"


def _dims_seen(choice: Choice, seen: list[Any] | None, grid: GridLengths | None, prefix: int, layout: AxisOrder) -> int:
    """Return the number of spatial axes an example shows, where it leaves no doubt."""
    path, kind = choice.path, type(choice.module).__name__
    if not seen or not isinstance(seen[0], Tensor):
        raise ValueError(f"{path!r} is a {kind}, whose grid is not known: give dims=, grid= or example=")
    if callable(grid):
        tokens = seen[0].shape[0 if layout == "tokens_first" else -2] - prefix
        return len(grid_of(tokens, grid, path))
    if seen[0].ndim not in (4, 5):
        raise ValueError(
            f"{path!r} is a {kind} and gives shape {tuple(seen[0].shape)}, with or without a grid: "
            "give grid= if these are tokens, dims= if it is a grid"
        )
    return seen[0].ndim - 2


def _free_name(module: nn.Module) -> str:
    names = ["gate", "heat_gate", *(f"heat_gate_{number}" for number in range(2, 100))]
    return next(name for name in names if not hasattr(module, name))


def _placed(gate: FractionalHeat, module: nn.Module, model: nn.Module) -> FractionalHeat:
    """Put the gate where its module lies, in the mode of its module."""
    own = next((tensor for group in (module.parameters(), module.buffers()) for tensor in group), None)
    device = device_of(model) if own is None else own.device
    return gate.to(device).train(module.training)
