"""Networks by name.

A new network of this package is one file and one line here. A network of another package is an entry point of the
group `fheat.networks` there, see `fheat.system.plugins`, or a call of `register_model`.
"""

import difflib
import inspect
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, get_type_hints

import torch
from torch import nn

from fheat.networks.base import SegmentationNetwork
from fheat.system.plugins import PluginGroup

GROUP = "fheat.networks"
"""Entry point group in which other packages declare networks."""
_NETWORKS: dict[str, str | Callable[..., nn.Module]] = {
    "fheat_seg": "fheat_seg:FHEATSeg",
    "fheat_seg_l": "fheat_seg_l:FHEATSegL",
    "light_unetr": "light_unetr:LightUNETR",
    "light_unetr_l": "light_unetr_l:LightUNETRL",
    "segresnet": "monai_peers:SegResNet",
    "unet": "monai_peers:UNet",
    "dynunet": "monai_peers:DynUNet",
    "swin_unetr": "monai_peers:SwinUNETR",
    "mednext": "monai_peers:MedNeXt",
    "segformer3d": "segformer3d:SegFormer3D",
    "fheat_segformer3d": "fheat_segformer3d:FHEATSegFormer3D",
    "amber_afno": "amber_afno:AMBERAFNO",
    "unetr_pp": "unetr_pp:UNETRPP",
    "transbts": "transbts:TransBTS",
    "slim_unetr": "slim_unetr:SlimUNETR",
}
"""Builder of each network: a class or function, or `file:class` of this folder until it is needed."""
_KNOWN_ELSEWHERE = {"nnunet": "dynunet"}
"""Names that others give to networks, in small letters without signs, and the names here."""
_COMMON = ("in_channels", "out_channels", "patch_size")
"""Arguments that every network takes."""


@dataclass(frozen=True)
class NetworkSpec:
    """How a network was built: the attribute `spec` of the network, stored in its model folder."""

    name: str
    in_channels: int
    out_channels: int
    patch_size: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one patch as an input of the network."""
        return (1, self.in_channels, *self.patch_size)

    def build(self) -> nn.Module:
        """Build the network again, with fresh weights."""
        return create_model(self.name, self.in_channels, self.out_channels, self.patch_size, **self.options)


def create_model(
    name: str,
    in_channels: int = 1,
    out_channels: int = 2,
    patch_size: Sequence[int] = (112, 112, 80),
    **options: Any,
) -> nn.Module:
    """Build a network by name; `list_models` has the names, `model_options` the options that each accepts.

    >>> model = create_model("fheat_seg", out_channels=3, mixer="gelu")
    >>> model.spec.name
    'fheat_seg'
    """
    build = _builder(name)
    known = model_options(name)
    for option in options:
        if option not in known:
            accepted = ", ".join(known) or "no options"
            raise TypeError(f"{name} has no option {option!r}{_suggest(option, known)}: it takes {accepted}")
    try:
        patch = tuple(map(operator.index, patch_size))
    except TypeError:
        raise ValueError(f"patch_size={patch_size!r} is not usable: give one whole number per axis") from None
    model = build(in_channels=in_channels, out_channels=out_channels, patch_size=patch, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"build of {name!r} returned {type(model).__name__}: it must return a torch.nn.Module")
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    model.spec = NetworkSpec(name, in_channels, out_channels, patch, plain)  # type: ignore[assignment]
    return model


def spec_of(model: nn.Module) -> NetworkSpec:
    """Return how the network was built, or raise `TypeError` if `create_model` did not build it."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, NetworkSpec):
        raise TypeError(f"{type(model).__name__} has no spec: build it with fheat.create_model, see register_model")
    return spec


def list_models() -> list[str]:
    """Return the names of all networks: those of this package first, then those added from elsewhere."""
    _plugins.load()
    return list(_NETWORKS)


def name_here(name: str) -> str:
    """Return the name here of a network that others call by `name`, else `name` itself; errors suggest it.

    >>> name_here("nnU-Net"), name_here("swin")
    ('dynunet', 'swin')
    """
    return _KNOWN_ELSEWHERE.get(re.sub(r"[^A-Za-z0-9]", "", name).lower(), name)


def model_options(name: str) -> dict[str, Any]:
    """Return the options that a network takes beyond channels and patch size, with their defaults."""
    parameters = inspect.signature(_builder(name)).parameters
    return {key: value.default for key, value in parameters.items() if key not in _COMMON}


def learning_rate_of(name: str) -> float:
    """Return the learning rate with which a network trains unless another is given.

    It is the number `learning_rate` of the class or function that builds the network, else 0.01.

    >>> learning_rate_of("fheat_seg"), learning_rate_of("light_unetr")
    (0.01, 0.001)
    """
    rate = getattr(_builder(name), "learning_rate", None)
    return float(rate) if isinstance(rate, int | float) else SegmentationNetwork.learning_rate


def provides(network: str | nn.Module) -> frozenset[str]:
    """Return what a network, or the network of that name, offers beyond logits: `attention`, `features`, or nothing.

    A `SegmentationNetwork` offers both, and so does any module with a `forward_features` that returns `Features`. A
    module that offers only one of them says so in an attribute `provides`.

    >>> sorted(provides("fheat_seg")), sorted(provides(nn.Conv3d(1, 2, 1)))
    (['attention', 'features'], [])
    """
    if isinstance(network, nn.Module):
        return _offer(network)
    build = _builder(network)
    if isinstance(build, type):
        return _offer(build)
    try:
        with torch.random.fork_rng(devices=[]):  # a copy that is discarded must not change the random state
            return _offer(create_model(network))
    except Exception:  # foreign code may raise anything; a network that cannot be built offers nothing
        return frozenset()


def _offer(network: nn.Module | type) -> frozenset[str]:
    has_features = callable(getattr(network, "forward_features", None))
    return frozenset(getattr(network, "provides", ("attention", "features") if has_features else ()))


def option_types(name: str) -> dict[str, Any]:
    """Return the type of each option of a network, from the annotations of its builder or else from its default."""
    build = _builder(name)
    hints = get_type_hints(build.__init__ if inspect.isclass(build) else build)
    return {option: hints.get(option, type(default)) for option, default in model_options(name).items()}


def register_model(name: str, build: Callable[..., nn.Module]) -> None:
    """Add a network of your own, so that `create_model`, `save` and `load` know it in this process.

    `build` takes in_channels, out_channels and patch_size as keywords, and keyword options with defaults. An installed
    package declares an entry point instead, and every process knows its network.
    """
    if name in _NETWORKS:
        raise ValueError(f"network {name!r} exists already: choose another name")
    parameters = inspect.signature(build).parameters
    missing = [key for key in _COMMON if key not in parameters]
    if missing:
        raise TypeError(f"build of {name!r} does not take {', '.join(missing)}: add them as keyword arguments")
    bare = [key for key, value in parameters.items() if key not in _COMMON and value.default is value.empty]
    if bare:
        raise TypeError(f"build of {name!r} has options without default ({', '.join(bare)}): give each a default")
    _NETWORKS[name] = build


def network_plugins() -> PluginGroup:
    """Return the networks of other packages: which were registered and which were refused."""
    _plugins.load()
    return _plugins


def _register_plugin(name: str, build: Callable[..., nn.Module]) -> None:
    if _NETWORKS.get(name) is not build:  # importing the module may have registered it already
        register_model(name, build)


_plugins = PluginGroup(GROUP, _register_plugin)


def _builder(name: str) -> Callable[..., nn.Module]:
    if name not in _NETWORKS:
        _plugins.load()
    if name in _NETWORKS:
        build = _NETWORKS[name]
        if isinstance(build, str):
            file, _, attribute = build.partition(":")
            build = _NETWORKS[name] = getattr(import_module(f"fheat.networks.{file}"), attribute)
        return build
    if name in _plugins.refused:
        reason = f"distribution {_plugins.refused[name]}"
        raise ValueError(f"network {name!r} cannot be used ({reason}): repair or update that package")
    hint = _suggest(name_here(name), _NETWORKS)
    raise ValueError(f"network {name[:60]!r} is unknown{hint}: use {', '.join(_NETWORKS)}")


def _suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
