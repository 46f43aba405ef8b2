"""Cost of a network: its parameters and the multiply-adds of one forward pass, those of transforms apart.

Multiply-adds are counted with torch's own counter by the rules of fvcore: 1 for each multiply-add of a convolution or
matrix product (a transposed convolution by its input grid, which is its true cost), 5 for each element of a group,
layer or instance norm (4 without scale and shift), 2 for each element of a batch norm in evaluation mode (1 without),
0 for all other operations. A test compares the two counters on every network.

The operators at the sites are counted apart from the rest: cosine transforms of gates by their algorithm; spectral
mixers in their place by their matrix products, and by 2.5 log2 N multiply-adds for each complex element and axis of a
Fourier transform, half of that for real ones (one for every two of its real operations).
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fheat.gates.dry_run import GateCall, Inputs, device_of, example_inputs, record_calls, run_on_copy
from fheat.ops.dct import Transform, axis_macs, transform_for
from fheat.ops.gates import gates_of, operators_of
from fheat.ops.heat import FractionalHeat
from fheat.ops.spectral_mixer import SpectralMixer
from fheat.system.text import grid_name

COUNTER: Final = "fvcore rules (convolutions, matrix products and norms; 1 multiply-add = 1)"

_aten = torch.ops.aten


def count_macs(run: Callable[[], object], *, fourier: bool = False) -> int:
    """Return the number of multiply-adds of everything that `run` does, Fourier transforms only if asked for."""
    others, transforms = _count(run)
    return others + transforms if fourier else others


def _count(run: Callable[[], object]) -> tuple[int, int]:
    """Return the number of multiply-adds of all that `run` does but Fourier transforms, and that of these."""
    with FlopCounterMode(display=False, custom_mapping=_NORMS | _FOURIER) as counter:
        run()
    counts = counter.get_flop_counts().get("Global", {})
    transforms = sum(count for operator, count in counts.items() if operator in _FOURIER)
    return int(counter.get_total_flops() - transforms) // 2, int(transforms) // 2


def parameters(model: nn.Module) -> int:
    """Return the number of scalars in the parameters of a network; a shared parameter counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


# The counter works in floating-point operations: one multiply-add is two of them.
def _group_norm(x: torch.Size, weight: torch.Size | None, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * (4 if weight is None else 5)


def _layer_norm(x: torch.Size, shape: Any, weight: torch.Size | None, *_: Any, **__: Any) -> int:
    return _group_norm(x, weight)


def _batch_norm(x: torch.Size, weight: torch.Size | None, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * (1 if weight is None else 2)


_NORMS = {
    _aten.native_group_norm: _group_norm,
    _aten.native_layer_norm: _layer_norm,
    _aten._native_batch_norm_legit: _group_norm,  # what an instance norm becomes
    _aten.native_batch_norm: _batch_norm,
    _aten._native_batch_norm_legit_no_training: _batch_norm,
}


def _fourier(x: torch.Size, axes: Sequence[int], *_: Any, out_shape: torch.Size, **__: Any) -> int:
    """Count a transform over `axes`; where one side is real, its last axis is transformed at half the price first.

    Real values have the longer last axis. The other axes act on half a spectrum.
    """
    last = axes[-1]
    longer, shorter = (x, out_shape) if x[last] > out_shape[last] else (out_shape, x)
    if longer == shorter:
        return round(5 * x.numel() * sum(math.log2(x[axis]) for axis in axes))
    rest = sum(math.log2(x[axis]) for axis in axes[:-1])
    return round(2.5 * longer.numel() * math.log2(longer[last]) + 5 * shorter.numel() * rest)


_FOURIER = {_aten._fft_r2c: _fourier, _aten._fft_c2c: _fourier, _aten._fft_c2r: _fourier}


@dataclass(frozen=True)
class Cost:
    """Number of parameters, and number of multiply-adds of one forward pass: `macs` = `transform` + `rest`."""

    parameters: int
    macs: int
    transform: int
    """Multiply-adds of the cosine transforms of **open** gates, forward and inverse, and of spectral mixers in their
    place. Closed gates count 0, as they do after `fheat.retire`."""
    rest: int
    """Multiply-adds of everything else, by fvcore's rules without Fourier transforms outside of the sites."""
    fourier: int
    """Multiply-adds that these Fourier transforms would add."""
    sites: dict[str, int]
    """Multiply-adds of the transforms, by site."""
    transforms: tuple[str, ...]
    """Algorithms that the transforms were counted with."""
    shape: tuple[int, ...]
    """Shape of the first input."""
    counter: str
    """Name of the counter and of its rules."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        algorithms = f" by {'/'.join(self.transforms)}" if self.transforms else ""
        more = f" Fourier transforms would add {giga(self.fourier)} G." if self.fourier else ""
        return (
            f"{self.parameters:,} parameters, {giga(self.macs)} G multiply-adds on {grid_name(self.shape)}: "
            f"{giga(self.transform)} G in transforms{algorithms}, {giga(self.rest)} G in the rest. "
            f"Counter: {self.counter}.{more}"
        )


def cost(model: nn.Module, shape: Inputs | None = None, *, transform: Transform | None = None) -> Cost:
    """Count the parameters and multiply-adds of any network that contains gates (or none).

    Args:
        model: the network; it is not changed.
        shape: input shape (N, C, *grid), or a tuple of example inputs. By default the input that the network states.
        transform: algorithm (`product`, `split`, `fft`) to count the open gates with, instead of each gate's own.
    """
    inputs = example_inputs(model, shape)
    if inputs is None:
        raise ValueError(f"shape is needed: {type(model).__name__} does not say which input it is made for")
    gates = gates_of(model)
    calls, rest, fourier = _calls_and_rest(model, inputs)
    device_type = device_of(model).type
    sites = {
        site: gate_macs(operator, calls[site], device_type, transform)
        if isinstance(operator, FractionalHeat)
        else mixer_macs(operator, calls[site])
        for site, operator in operators_of(model).items()
    }
    used: set[str] = {
        transform_for(length, device_type, transform or gate.transform)
        for site, gate in gates.items()
        if not gate.closed
        for call in calls[site]
        for length in call.grid
        if length > 1
    }
    if any(isinstance(operator, SpectralMixer) and not operator.retired for operator in operators_of(model).values()):
        used.add("fourier")
    total = sum(sites.values())
    shape = tuple(inputs[0].shape)
    return Cost(parameters(model), total + rest, total, rest, fourier, sites, tuple(sorted(used)), shape, COUNTER)


def gate_macs(
    gate: FractionalHeat, calls: Sequence[GateCall], device_type: str, transform: Transform | None = None
) -> int:
    """Return the number of multiply-adds of a gate's transforms, forward and inverse, over all its calls.

    By plain products a call takes 2 C HWZ (H + W + Z). A closed gate takes 0.
    """
    if gate.closed:
        return 0
    return round(sum(_call_macs(call, device_type, transform or gate.transform) for call in calls))


def mixer_macs(mixer: SpectralMixer, calls: Sequence[GateCall]) -> int:
    """Return the number of multiply-adds of a spectral mixer over all its calls."""
    copied = copy.deepcopy(mixer).to("meta").eval()
    with torch.no_grad():
        return sum(
            count_macs(
                partial(copied, torch.empty(call.maps // call.channels, call.channels, *call.grid, device="meta")),
                fourier=True,
            )
            for call in calls
        )


def giga(macs: int) -> str:
    """Return a number of multiply-adds in units of 1e9 as papers print it: three decimals below ten, two above."""
    return f"{macs / 1e9:.3f}" if macs < 10e9 else f"{macs / 1e9:.2f}"


def _call_macs(call: GateCall, device_type: str, transform: Transform) -> float:
    elements = call.maps * torch.Size(call.grid).numel()
    lengths = [length for length in call.grid if length > 1]
    return 2 * elements * sum(axis_macs(length, transform_for(length, device_type, transform)) for length in lengths)


def _calls_and_rest(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[str, list[GateCall]], int, int]:
    """Return the calls of every gate in one forward pass, the multiply-adds of everything else in it, and those of
    Fourier transforms besides."""

    def count(copied: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[str, list[GateCall]], int, int]:
        calls = record_calls(copied)
        for operator in operators_of(copied).values():
            operator.bypass(alpha=1.0)
        return calls, *_count(lambda: copied(*inputs))

    return run_on_copy(model, inputs, count)
