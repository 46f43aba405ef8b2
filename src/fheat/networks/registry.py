"""Networks by name. A new network is one file and one line here."""

import difflib
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fheat.networks.fheat_seg import FHEATSeg
from fheat.networks.fheat_seg_l import FHEATSegL
from fheat.networks.light_unetr import LightUNETR
from fheat.networks.light_unetr_l import LightUNETRL
from fheat.networks.monai_peers import DynUNet, MedNeXt, SegResNet, SwinUNETR

_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "fheat_seg": FHEATSeg,
    "fheat_seg_l": FHEATSegL,
    "light_unetr": LightUNETR,
    "light_unetr_l": LightUNETRL,
    "segresnet": SegResNet,
    "dynunet": DynUNet,
    "swin_unetr": SwinUNETR,
    "mednext": MedNeXt,
}
_COMMON = ("in_channels", "out_channels", "patch_size")


@dataclass(frozen=True)
class NetworkSpec:
    """How a network was built; carried by the network as `model.spec`, stored in its folder."""

    name: str
    in_channels: int
    out_channels: int
    patch_size: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of an input the network is made for: one patch."""
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
    """Build a network by name; `list_models` has the names, `model_options` what each accepts.

    >>> model = create_model("fheat_seg", out_channels=3, mixer="gelu")
    >>> model.spec.name
    'fheat_seg'
    """
    if name not in _NETWORKS:
        raise ValueError(f"network {name!r} is unknown{_suggest(name, _NETWORKS)}: use {', '.join(_NETWORKS)}")
    known = model_options(name)
    for option in options:
        if option not in known:
            accepted = ", ".join(known) or "no options"
            raise TypeError(f"{name} has no option {option!r}{_suggest(option, known)}: it takes {accepted}")
    try:
        patch = tuple(map(operator.index, patch_size))
    except TypeError:
        raise ValueError(f"patch_size={patch_size!r} is not usable: give one whole number per axis") from None
    model = _NETWORKS[name](in_channels=in_channels, out_channels=out_channels, patch_size=patch, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"build of {name!r} returned {type(model).__name__}: it must return a torch.nn.Module")
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    model.spec = NetworkSpec(name, in_channels, out_channels, patch, plain)  # type: ignore[assignment]
    return model


def spec_of(model: nn.Module) -> NetworkSpec:
    """Return how the network was built, or say that it was not built by `create_model`."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, NetworkSpec):
        raise TypeError(f"{type(model).__name__} has no spec: build it with fheat.create_model, see register_model")
    return spec


def list_models() -> list[str]:
    """Return the names of all networks."""
    return list(_NETWORKS)


def model_options(name: str) -> dict[str, Any]:
    """Return the options a network takes beyond channels and patch size, with their defaults."""
    parameters = inspect.signature(_NETWORKS[name]).parameters
    return {key: value.default for key, value in parameters.items() if key not in _COMMON}


def register_model(name: str, build: Callable[..., nn.Module]) -> None:
    """Add a network of your own, so that `create_model`, `save` and `load` know it.

    `build` takes in_channels, out_channels and patch_size as keywords, and keyword options with defaults.
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


def _suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
