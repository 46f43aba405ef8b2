"""How long a run takes and how much memory, estimated before it begins.

    minutes = iterations x crops x (3 passes with gradients + passes without) x time of a forward pass / 60,000 ms
    bytes   = weights x copies + 1.5 x crops with gradients x activations of a crop

A pass with gradients counts as three forward passes. The time of a forward pass is a stored measurement, scaled by the
number of voxels; reading, validation and scoring come on top. Activations are those that a small crop leaves for the
backward pass, scaled by the number of voxels; losses and what the backward pass itself needs add about half of that.
"""

import copy
import tomllib
from functools import cache
from importlib.resources import files
from math import prod
from typing import Final, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from fheat.methods.base import Method
from fheat.methods.registry import method_class
from fheat.ops import kernels
from fheat.system.settings import Section

Device = Literal["cuda", "cpu"]
DEVICES: tuple[Device, ...] = ("cuda", "cpu")
Precision = Literal["bf16", "fp32"]
_SIDE: Final = 32
"""Number of voxels along each axis of the crop whose activations are measured."""
_BESIDE: Final = 1.5
"""Factor for losses and for what the backward pass holds for a moment: iterations on a CPU took 1.2 to 1.6 times their
activations (FHEAT-Seg and SegResNet, crops of 64 and 96 voxels a side)."""


class Gain(Section):
    """Measured gain of `torch.compile` for one network within training, and its cost."""

    eager: PositiveFloat
    """Milliseconds of a forward pass without it."""
    compiled: PositiveFloat
    """Milliseconds of a forward pass with it."""
    seconds: NonNegativeFloat
    """Time that compiling takes before the first iteration."""


class Speed(Section):
    """Time of one forward pass within training, network by network, on one machine."""

    machine: str
    voxels: int
    """Number of voxels of the crop that was timed."""
    milliseconds: dict[str, float]
    compiled: dict[Precision, dict[str, Gain]] = Field(default_factory=dict)
    """Gain of `torch.compile` by precision and network; only measured gains are here."""


def device_kind(device: torch.device) -> Device:
    """Return which of the stored speeds are those of a device."""
    return "cuda" if device.type == "cuda" else "cpu"


@cache
def speeds() -> dict[Device, Speed]:
    """Return the stored speeds by device."""
    content = tomllib.loads((files("fheat.training") / "speeds.toml").read_text("utf-8"))
    return {device: Speed.model_validate(content[device]) for device in DEVICES}


def stored_speed(network: str, method: str, patch: tuple[int, ...], batch: int, device: Device) -> float | None:
    """Return the iterations per second that the stored speeds suggest, or None for a network that nobody has timed or
    a method that does not exist."""
    speed = speeds()[device]
    passes = forward_passes(method, patch, batch, device)
    if network not in speed.milliseconds or passes is None:
        return None
    return 1000 / (passes * speed.milliseconds[network])


def forward_passes(method: str, patch: tuple[int, ...], batch: int, device: Device) -> float | None:
    """Return how many forward passes of the crop that was timed on a device an iteration is as long as; None for a
    method that does not exist."""
    try:
        with_gradients, without = method_class(method).passes
    except ValueError:
        return None
    return batch * (3 * with_gradients + without) * prod(patch) / speeds()[device].voxels


def shown(minutes: float | None) -> str:
    """Return a time as `3 min` or, from 100 minutes on, as `2 h`; `?` where it is not known."""
    if minutes is None:
        return "?"
    if minutes >= 100:
        return f"{minutes / 60:,.0f} h"
    return f"{minutes:.0f} min" if minutes >= 1 else "under 1 min" if minutes else "0 min"


def activation_bytes(model: nn.Module, channels: int, patch: tuple[int, int, int]) -> int | None:
    """Return the bytes that one crop in float32 leaves for the backward pass; None for a network that cannot say.

    A copy of the network looks at a small crop on the CPU, without fused kernels, and no random number is used up.
    """
    small = tuple(min(length, _SIDE) for length in patch)
    kept: dict[int, torch.UntypedStorage] = {}
    try:
        with torch.random.fork_rng(devices=[]), kernels.use("never"):
            copied = copy.deepcopy(model).cpu().float().train()
            own = {parameter.untyped_storage().data_ptr() for parameter in copied.parameters()}

            def keep(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    kept[storage.data_ptr()] = storage  # held, so that no other one gets its address
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                copied(torch.zeros(2, channels, *small))
    except Exception:  # a network of another package, which may want larger crops, more crops or another device
        return None
    return sum(storage.nbytes() for storage in kept.values()) // 2 * prod(patch) // prod(small)


def step_bytes(model: nn.Module, method: Method, activations: int, batch: int, *, half: bool) -> int:
    """Return about how many bytes an iteration takes beside the scans.

    Weights are there with their gradients and two moments, and a method may hold a second network. The activations of
    all crops with gradients are held at the same time; in half precision they take half of it.
    """
    weights = sum(parameter.nbytes for parameter in model.parameters())
    copies = 4 + method.needs.teacher + 4 * method.needs.second_network
    crops = batch * method.passes[0]
    return weights * copies + int(_BESIDE * crops * activations) // (2 if half else 1)
