"""Put gates into somebody else's network without changing what it computes: choose modules, and hook a gate to each.

Modules are chosen by path, by pattern, by type or by predicate.
"""

import copy
import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fheat.gates.dry_run import Inputs, device_of, example_inputs, run_on_copy
from fheat.gates.hook import AXIS_ORDERS, AxisOrder, GateHook, GridLengths, attach, gate_hooks, new_gate, plan_hook
from fheat.ops.heat import FractionalHeat

Network = TypeVar("Network", bound=nn.Module)
Rule = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""A module path, a pattern of one (`*` within a part, `**` over parts), a type, or a predicate of path and module."""
Sites = Rule | Sequence[Rule] | Mapping[str, GridLengths | None]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Choice:
    """A module that was chosen to get a gate."""

    path: str
    module: nn.Module
    grid: GridLengths | None
    """Grid that was given for the tokens of this module."""
    named: bool
    """Whether the module was asked for by its path, not chosen by a rule."""


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
    decide, instrument those sites with `initial_strength=0.03`, which changes the outputs a little.

    Args:
        model: the network; it is not changed.
        sites: a module path as in `model.named_modules()`; a pattern, `*` for anything within one part of the path,
            `**` for any number of parts; a module type; a predicate `(path, module) -> bool`; several of these; or a
            mapping from paths or patterns to the grids their tokens lie on (None: no tokens). None takes every
            convolution with a kernel larger than one, and with `grid` every `nn.MultiheadAttention` too.
        initial_strength: strength D that the gates start with.
        dims: number of spatial axes of outputs. It is known for the layers of `torch.nn` whose names end in 1d, 2d or
            3d, and from `example`.
        grid: where outputs are tokens, the grid they lie on, row by row, or a function from their number to it.
        prefix_tokens: number of leading tokens, such as a class token, that do not pass through the gate.
        layout: `channels_first` (N, C, *grid), `channels_last` (N, *grid, C), `tokens` (N, T, C) or `tokens_first`
            (T, N, C), where it is not known from the class. With a grid, tokens are assumed.
        example: an input shape or a tuple of inputs, for one pass that shows the outputs of every module. A module that
            is never called or has nothing to mix is refused if its path was given, and left out if a rule chose it.
        gate_options: `alpha`, `strength`, `initial_theta`, `transform` of `FractionalHeat`.

    A module that is called several times, or has several paths, has one gate for all its calls. Of a tuple the first
    element passes through the gate. The gate of an `nn.Sequential` is a child of its last layer, and is named so.
    `fheat.save` stores a network of `fheat.create_model` with its gates, unless `grid` is a function.
    """
    if layout is not None and layout not in AXIS_ORDERS:
        raise ValueError(f"layout={layout!r} is unknown: use {', '.join(AXIS_ORDERS)}")
    if prefix_tokens < 0:
        raise ValueError(f"prefix_tokens={prefix_tokens} is negative: give the number of leading tokens")
    if dims not in (None, 1, 2, 3):
        raise ValueError(f"dims={dims!r} is not supported: use 1, 2 or 3 spatial axes")
    copied = _copy(model)
    chosen = choose(copied, _usual_sites(copied, attention=grid is not None) if sites is None else sites)
    options = {"dims": dims, "grid": grid, "prefix_tokens": prefix_tokens, "layout": layout}
    for choice, hook in _plan_hooks(copied, chosen, example, options):
        hook = replace(hook, options=gate_options)
        gate = new_gate(hook, initial_strength=initial_strength)
        attach(choice.module, _placed_beside(gate, choice.module, copied), hook)
    return copied


def _copy(model: Network) -> Network:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{type(model).__name__} cannot be copied: {reason}") from error


def _plan_hooks(
    model: nn.Module, chosen: list[Choice], example: Inputs | None, options: dict[str, Any]
) -> list[tuple[Choice, GateHook]]:
    """Return the hook of each chosen module that can take a gate.

    Raises `ValueError` for a module that was asked for by its path and cannot take one, or if none of them can.
    """
    inputs = example_inputs(model, example)
    outputs = None if inputs is None else _outputs(model, [choice.path for choice in chosen], inputs)
    planned, refused = [], []
    for choice in chosen:
        returned = None if outputs is None else outputs[choice.path]
        try:
            hook = plan_hook(choice.path, choice.module, returned, own_grid=choice.grid, **options)
            planned.append((choice, hook))
        except ValueError as reason:
            if choice.named or outputs is None:
                raise
            refused.append(str(reason))
    if not planned:
        raise ValueError(f"none of the {len(chosen)} chosen modules can take a gate: {refused[0]}")
    return planned


def _outputs(model: nn.Module, paths: list[str], inputs: tuple[Tensor, ...]) -> dict[str, list[Any]]:
    """Return what every call of the modules at these paths returns in one forward pass, tensors without values."""

    def run(copied: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[Any]]:
        outputs: dict[str, list[Any]] = {path: [] for path in paths}
        for path, calls in outputs.items():
            copied.get_submodule(path).register_forward_hook(
                lambda module, inputs, output, calls=calls: calls.append(_without_values(output))
            )
        copied(*inputs)
        return outputs

    return run_on_copy(model, inputs, run)


def _without_values(output: Any) -> Any:
    value = output[0] if isinstance(output, tuple) and output else output
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _placed_beside(gate: FractionalHeat, module: nn.Module, model: nn.Module) -> FractionalHeat:
    """Return the gate on the device and in the mode of its module."""
    own = next((tensor for group in (module.parameters(), module.buffers()) for tensor in group), None)
    device = device_of(model) if own is None else own.device
    return gate.to(device).train(module.training)


def choose(model: nn.Module, sites: Sites) -> list[Choice]:
    """Return the chosen modules in the order of `model.named_modules()`, each once.

    A module with several paths is listed under the first of them. The output of an `nn.Sequential` is that of its last
    layer, and that layer is chosen in its place. A module that cannot take a gate is left out if a rule chose it, and
    raises `ValueError` if it was asked for by its path.
    """
    by_module: dict[int, Choice] = {}
    for rule, grid in _rules(sites):
        named = isinstance(rule, str) and not _is_pattern(rule)
        for path, module in _matching(model, rule):
            last = _last_layer(module)
            reason = _obstacle(last)
            if reason is not None and named:
                raise ValueError(f"{path!r} {reason}")
            if reason is None and (id(last) not in by_module or named):
                by_module[id(last)] = Choice(path, last, grid, named)
    places = {id(module): path for path, module in model.named_modules()}
    order = {key: place for place, key in enumerate(places)}
    chosen = sorted(by_module.values(), key=lambda choice: order[id(choice.module)])
    if not chosen:
        raise ValueError(f"sites={_shown(sites)} leaves no module of {type(model).__name__} that can take a gate")
    return [Choice(places[id(choice.module)], choice.module, choice.grid, choice.named) for choice in chosen]


def _usual_sites(model: nn.Module, *, attention: bool) -> Callable[[str, nn.Module], bool]:
    """Return the rule that chooses modules where no sites are given.

    It chooses the convolutions, transposed or not, whose kernel is longer than one cell on some axis and, with
    `attention`, every `nn.MultiheadAttention`.
    """

    def usual(path: str, module: nn.Module) -> bool:
        wide = isinstance(module, _CONVOLUTIONS) and max(module.kernel_size) > 1
        return wide or (attention and isinstance(module, nn.MultiheadAttention))

    if not any(usual(path, module) for path, module in model.named_modules()):
        also = " and no nn.MultiheadAttention" if attention else ""
        raise ValueError(
            f"{type(model).__name__} has no convolution with a kernel larger than one{also}: name its sites"
        )
    return usual


def _rules(sites: Any) -> list[tuple[Rule, GridLengths | None]]:
    """Return the argument `sites` of `instrument` as a list of rules, each with the grid that was given for it."""
    if isinstance(sites, Mapping):
        rules = list(sites.items())
    elif isinstance(sites, str) or callable(sites):
        rules = [(sites, None)]
    else:
        rules = [(rule, None) for rule in sites] if isinstance(sites, Sequence) else [(sites, None)]
    for rule, _ in rules:
        if not (isinstance(rule, str) or callable(rule)):
            raise ValueError(f"sites has {rule!r}: give module paths, patterns, module types or a predicate")
    return rules


def _matching(model: nn.Module, rule: Rule) -> list[tuple[str, nn.Module]]:
    """Return the path and module of everything that a rule fits; raise `ValueError` where it fits nothing."""
    places: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if isinstance(rule, str) and not _is_pattern(rule):
        if rule not in places:
            raise ValueError(f"{type(model).__name__} has no module {rule!r}: {_nearest(rule, list(places))}")
        return [(rule, places[rule])]
    matching: list[tuple[str, nn.Module]]
    if isinstance(rule, type):
        matching = [(path, module) for path, module in places.items() if isinstance(module, rule)]
    elif isinstance(rule, str):
        parts = rule.split(".")
        matching = [(path, module) for path, module in places.items() if path and _fits(path.split("."), parts)]
    else:
        matching = [(path, module) for path, module in places.items() if rule(path, module)]
    if not matching:
        near = f": {_nearest(rule, list(places))}" if isinstance(rule, str) else ""
        raise ValueError(f"{type(model).__name__} has no module that fits {_shown(rule)}{near}")
    return matching


def _is_pattern(rule: str) -> bool:
    return any(sign in rule for sign in "*?[")


def _fits(path: list[str], pattern: list[str]) -> bool:
    """Return whether the parts of a path fit those of a pattern; `**` fits any number of parts."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return _fits(path, pattern[1:]) or (bool(path) and _fits(path[1:], pattern))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _fits(path[1:], pattern[1:])


def _last_layer(module: nn.Module) -> nn.Module:
    """Return the layer whose output is that of an `nn.Sequential`, which itself would run a child gate as a layer."""
    while isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module):
        module = module[-1]
    return module


def _obstacle(module: nn.Module) -> str | None:
    """Return the reason why this module cannot carry a gate, or None where it can."""
    kind = type(module).__name__
    if type(module).__module__.startswith("torch.jit"):
        return "is compiled by torch.jit and cannot be changed: instrument the network it was made from"
    if isinstance(module, FractionalHeat):
        return "is a gate already"
    if gate_hooks(module):
        return "has a gate already"
    if type(module).forward is nn.Module.forward:
        return f"is a {kind}, which is never called: name a layer inside it"
    if isinstance(module, _CONTAINERS):
        return f"is a {kind}, which may run whatever is added to it as a layer: name a layer inside it"
    return None


def _nearest(name: str, paths: list[str]) -> str:
    """Return words that name the module paths most like a wrong one."""
    paths = [path for path in paths if path]
    close = difflib.get_close_matches(name, paths, n=4, cutoff=0.5)
    if close:
        return f"close ones are {', '.join(close)}"
    shown = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
    return f"there are {shown}" if paths else "it has no modules inside"


def _shown(sites: Any) -> str:
    return str(getattr(sites, "__name__", None) or repr(sites))
