"""The networks of a benchmark by name, with their gates open, closed but for the last, or retired."""

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
    """What could be built, in the order asked for, and why the rest could not."""

    built: dict[str, SegmentationNetwork] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def build(names: Sequence[str], patch: Sequence[int], device: str, seed: int = 0) -> Networks:
    """Build networks with fresh weights, on a device, in evaluation mode.

    A name is one of the registry, or one with gates and a state of them: `/open` as built, `/survivor` with all but the
    last closed and retired, `/retired` with none left. A network whose library is missing is listed as missing; an
    unknown name, or none that can be built, is an error.
    """
    found = Networks()
    for name in names:
        try:
            torch.manual_seed(seed)
            found.built[name] = _build(name, patch).to(device).eval()
        except BadInput as error:
            found.missing[name] = str(error)
    if not found.built:
        raise BadInput(", ".join(names), "none can be built", next(iter(found.missing.values()), "name one"))
    return found


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
