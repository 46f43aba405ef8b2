"""Count multiply-adds the way fvcore does, on torch's own counter.

fvcore's rules: one per multiply-add of convolutions and matrix products (a transposed convolution by its input grid,
which is its true cost), 5 per element of a group, layer or instance norm (4 without scale and shift), 2 per element of
a batch norm in evaluation mode (1 without), nothing for the rest. A test compares the two on every network.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fheat.gates.sites import Inputs, Visit, checked_inputs, device_of, listen, run_copy
from fheat.ops.dct import Transform, axis_macs, transform_for
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat

COUNTER: Final = "fvcore rules (convolutions, matrix products and norms; 1 multiply-add = 1)"

_aten = torch.ops.aten


def count_macs(run: Callable[[], object]) -> int:
    """Return the multiply-adds of everything `run` does."""
    with FlopCounterMode(display=False, custom_mapping=_NORMS) as counter:
        run()
    return int(counter.get_total_flops()) // 2


def parameters(model: nn.Module) -> int:
    """Return the number of scalars in parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


# The counter works in flops, two to a multiply-add.
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


@dataclass(frozen=True)
class Cost:
    """Parameters and multiply-adds of one forward pass.

    `macs` = `transform` + `rest`; `transform` covers the cosine transforms of **open** gates, forward and inverse, by
    the algorithms named in `transforms`; closed gates count nothing, as after `fheat.retire`.
    """

    parameters: int
    macs: int
    transform: int
    rest: int
    sites: dict[str, int]
    transforms: tuple[str, ...]
    shape: tuple[int, ...]
    counter: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        by = f" by {'/'.join(self.transforms)}" if self.transforms else ""
        return (
            f"{self.parameters:,} parameters, {giga(self.macs)} G multiply-adds on {'x'.join(map(str, self.shape))}: "
            f"{giga(self.transform)} G in transforms{by}, {giga(self.rest)} G in the rest. Counter: {self.counter}."
        )


def cost(model: nn.Module, shape: Inputs | None = None, *, transform: Transform | None = None) -> Cost:
    """Count the parameters and multiply-adds of any network that contains gates (or none).

    Args:
        model: the network; it is not changed.
        shape: input shape (N, C, *grid), one patch for our networks; or a tuple of example inputs.
        transform: algorithm to count the open gates with, instead of each gate's own (`product`, `split`, `fft`).
    """
    inputs = checked_inputs(model, shape)
    if inputs is None:
        raise ValueError(f"shape is needed: {type(model).__name__} does not say which input it is made for")
    gates = gates_of(model)
    seen, rest = _visits_and_rest(model, inputs)
    kind = device_of(model).type
    sites = {site: gate_macs(gate, seen[site], kind, transform) for site, gate in gates.items()}
    used = {
        transform_for(length, kind, transform or gate.transform)
        for site, gate in gates.items()
        if not gate.closed
        for visit in seen[site]
        for length in visit.grid
        if length > 1
    }
    total = sum(sites.values())
    shape = tuple(inputs[0].shape)
    return Cost(parameters(model), total + rest, total, rest, sites, tuple(sorted(used)), shape, COUNTER)


def gate_macs(
    gate: FractionalHeat, calls: Sequence[Visit], device_type: str, transform: Transform | None = None
) -> int:
    """Multiply-adds of a gate's transform pairs: 2 C HWZ (H + W + Z) per call by plain products, 0 when closed."""
    if gate.closed:
        return 0
    return round(sum(_pair_macs(visit, device_type, transform or gate.transform) for visit in calls))


def giga(macs: int) -> str:
    """Format as the literature prints it: three decimals below ten, two above."""
    return f"{macs / 1e9:.3f}" if macs < 10e9 else f"{macs / 1e9:.2f}"


def _pair_macs(visit: Visit, device_type: str, transform: Transform) -> float:
    elements = visit.maps * torch.Size(visit.grid).numel()
    lengths = [length for length in visit.grid if length > 1]
    return 2 * elements * sum(axis_macs(length, transform_for(length, device_type, transform)) for length in lengths)


def _visits_and_rest(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[str, list[Visit]], int]:
    """Return what the gates see, and the multiply-adds of everything else."""

    def count(copied: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[dict[str, list[Visit]], int]:
        seen = listen(copied)
        for gate in gates_of(copied).values():
            gate.bypass(alpha=1.0)
        return seen, count_macs(lambda: copied(*inputs))

    return run_copy(model, inputs, count)
