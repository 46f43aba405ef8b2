"""Choose modules of a network: by path, by pattern, by type, by predicate."""

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fheat.gates.hook import GridLengths, gate_hooks
from fheat.ops.heat import FractionalHeat

Rule = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""A module path, a pattern of one (`*` within a part, `**` over parts), a type, or a predicate of path and module."""
Sites = Rule | Sequence[Rule] | Mapping[str, GridLengths | None]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Choice:
    """One module that shall get a gate; `named` where it was asked for by its path, `grid` where that came along."""

    path: str
    module: nn.Module
    grid: GridLengths | None
    named: bool


def choose(model: nn.Module, sites: Sites) -> list[Choice]:
    """Return the chosen modules in the order of `model.named_modules()`, each once.

    A module at several paths has the first of them. The output of an `nn.Sequential` is that of its last layer, and
    that layer is chosen in its place. What is chosen by a rule is left out where it cannot take a gate; what is asked
    for by its path raises ValueError.
    """
    found: dict[int, Choice] = {}
    for rule, grid in _rules(sites):
        named = isinstance(rule, str) and not _is_pattern(rule)
        for path, module in _matching(model, rule):
            last = _last_layer(module)
            reason = _obstacle(last)
            if reason is not None and named:
                raise ValueError(f"{path!r} {reason}")
            if reason is None and (id(last) not in found or named):
                found[id(last)] = Choice(path, last, grid, named)
    places = {id(module): path for path, module in model.named_modules()}
    order = {key: place for place, key in enumerate(places)}
    chosen = sorted(found.values(), key=lambda choice: order[id(choice.module)])
    if not chosen:
        raise ValueError(f"sites={_shown(sites)} leaves no module of {type(model).__name__} that can take a gate")
    return [Choice(places[id(choice.module)], choice.module, choice.grid, choice.named) for choice in chosen]


def usual_sites(model: nn.Module, *, attention: bool) -> Callable[[str, nn.Module], bool]:
    """Return the rule for a network whose sites nobody named.

    It takes the convolutions, transposed or not, that look further than one cell on some axis, and with `attention`
    every `nn.MultiheadAttention`.
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
    places: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if isinstance(rule, str) and not _is_pattern(rule):
        if rule not in places:
            raise ValueError(f"{type(model).__name__} has no module {rule!r}: {_nearest(rule, list(places))}")
        return [(rule, places[rule])]
    found: list[tuple[str, nn.Module]]
    if isinstance(rule, type):
        found = [(path, module) for path, module in places.items() if isinstance(module, rule)]
    elif isinstance(rule, str):
        parts = rule.split(".")
        found = [(path, module) for path, module in places.items() if path and _fits(path.split("."), parts)]
    else:
        found = [(path, module) for path, module in places.items() if rule(path, module)]
    if not found:
        near = f": {_nearest(rule, list(places))}" if isinstance(rule, str) else ""
        raise ValueError(f"{type(model).__name__} has no module that fits {_shown(rule)}{near}")
    return found


def _is_pattern(rule: str) -> bool:
    return any(sign in rule for sign in "*?[")


def _fits(path: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return _fits(path, pattern[1:]) or (bool(path) and _fits(path[1:], pattern))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _fits(path[1:], pattern[1:])


def _last_layer(module: nn.Module) -> nn.Module:
    """Descend to the layer whose output is that of an `nn.Sequential`, which would run a child gate as a layer."""
    while isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module):
        module = module[-1]
    return module


def _obstacle(module: nn.Module) -> str | None:
    """Say why this module cannot carry a gate, or None."""
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
    paths = [path for path in paths if path]
    close = difflib.get_close_matches(name, paths, n=4, cutoff=0.5)
    if close:
        return f"close ones are {', '.join(close)}"
    shown = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
    return f"there are {shown}" if paths else "it has no modules inside"


def _shown(sites: Any) -> str:
    return str(getattr(sites, "__name__", None) or repr(sites))
