"""The networks of a benchmark, built by name; those with gates in three states: open, one survivor, or retired."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from fheat.gates.retire import retire
from fheat.networks.base import SegmentationNetwork
from fheat.networks.registry import create_model
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput

EVERY: Final = (
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
SMALL: Final = ("fheat_seg/retired", "fheat_seg/survivor", "fheat_seg/open", "light_unetr")
STATES: Final = ("open", "survivor", "retired")


@dataclass
class Networks:
    """The networks that could be built, by name and in the order asked for, and why others could not."""

    built: dict[str, SegmentationNetwork] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Networks that could not be built, each with the reason."""


def build(names: Sequence[str], patch: Sequence[int], device: str, seed: int = 0) -> Networks:
    """Return networks with fresh weights, on a device, in evaluation mode.

    A name is one of the registry. For a network with gates a state may follow: `/open` as built, `/survivor` with all
    gates but the last closed and retired, `/retired` with all gates retired. A network whose library is not installed
    is listed as missing. Raises `ValueError` for an unknown name, and `BadInput` where no network can be built.
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
    plain, _, state = name.partition("/")
    model = create_model(plain, patch_size=patch)
    gates = gates_of(model)
    if state and (state not in STATES or not gates):
        raise ValueError(f"network {name!r} is unknown: only networks with gates have /{', /'.join(STATES)}")
    if state in ("survivor", "retired"):
        for gate in list(gates.values())[: -1 if state == "survivor" else None]:
            assert gate.delta is not None
            gate.delta.data.fill_(-0.1)
        model = retire(model)
    return model  # type: ignore[return-value]
