"""Whether `torch.compile` runs the network of a training run: what was asked for, what was measured, what it costs.

    saved = forward passes of the run x (eager - compiled) ms / 1000        compile where saved > seconds of compiling

Times and gains are stored measurements, `speeds.toml`. A network, a kind of device or a precision that nobody has
measured is never compiled unless the settings say yes. `fheat.training.compile_check` compiles, and compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import nn

from fheat.networks.padded import PaddedNetwork
from fheat.training.estimate import Device, Gain, Precision, forward_passes, speeds
from fheat.training.settings import TrainSettings

SMALLEST_GAIN: Final = 1.1
"""Smallest ratio of the times without and with `torch.compile` for which it is worth a compiler: other machines,
methods and options of the network gain a little more or less than what was measured."""


@dataclass(frozen=True)
class Compiling:
    """Whether the networks of a run are compiled, and why. Checkpoints and model cards keep it."""

    compiled: bool = False
    reason: str = "it was not asked for"

    def shown(self) -> str:
        """Return it as a few words, such as `no: optimiser.compile is no`."""
        return f"{'yes' if self.compiled else 'no'}: {self.reason}"


def choose(wanted: Literal["auto", "yes", "no"], gain: Gain | None, passes: float) -> Compiling:
    """Choose from a setting, from what was measured, if anything was, and from the number of forward passes of a run.

    More passes never turn compiling off. Without a measurement, below `SMALLEST_GAIN` and without passes, auto does not
    compile.
    """
    if wanted != "auto":
        return Compiling(wanted == "yes", f"optimiser.compile is {wanted}")
    if gain is None:
        return Compiling(reason="nobody has measured what it gains in such a run")
    ratio, saved = gain.eager / gain.compiled, passes * (gain.eager - gain.compiled) / 1000
    if ratio < SMALLEST_GAIN:
        return Compiling(reason=f"an iteration was measured to be {ratio:.2f} times as fast, which is too little")
    if saved <= gain.seconds:
        return Compiling(reason=f"the run would save {saved:.0f} s, and compiling takes {gain.seconds:.0f} s")
    return Compiling(True, f"an iteration was measured to be {ratio:.2f} times as fast")


def choose_for(settings: TrainSettings, model: nn.Module, device: Device) -> Compiling:
    """Choose for a run that begins, with the network that it trains."""
    data, method = settings.data, settings.method.name
    passes = forward_passes(method, data.patch_size, data.batch, device) or 0.0
    wanted = settings.optimiser.compile
    return choose(wanted, measured_gain(settings, model, device), passes * settings.schedule.iterations)


def measured_gain(settings: TrainSettings, model: nn.Module, device: Device) -> Gain | None:
    """Return what was measured for the network of a run, None where nobody has.

    Gates that are put into a network were not part of any measurement, nor were algorithms that repeat bit by bit,
    among which a compiler chooses by timing them. A network that is no `PaddedNetwork` cannot be compiled: it has
    kernels of its own.
    """
    if not isinstance(model, PaddedNetwork) or settings.network.instrument or settings.optimiser.deterministic:
        return None
    precision: Precision = settings.optimiser.precision if device == "cuda" else "fp32"
    return speeds()[device].compiled.get(precision, {}).get(settings.network.name)


def compiling_of(facts: Mapping[str, Any]) -> Compiling | None:
    """Return how the run of a checkpoint with these facts was begun; it goes on so, whatever is measured by now.

    Checkpoints of versions that did not choose say nothing; where the settings do not either, these runs were not
    compiled.
    """
    told = facts.get("compiled")
    if told is not None:
        return Compiling(**told)
    asked = facts.get("settings", {}).get("optimiser", {}).get("compile", False)
    return Compiling(reason="the run was begun without it") if asked is False else None
