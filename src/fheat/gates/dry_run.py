"""Dry runs: pass an example input through a copy of a network, without values where possible, and record its gates.

Tensors on torch's `meta` device have a shape and no values, so such a pass takes neither time nor memory.
"""

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from fheat.ops import kernels
from fheat.ops.gates import operators_of

Result = TypeVar("Result")
Inputs = Sequence[int] | Sequence[Tensor]
"""One input shape (N, C, *grid), or example inputs, for networks that take several inputs or other ones."""


@dataclass(frozen=True)
class GateCall:
    """One call of a gate: the grid and the number of channels of its input, and the number of maps in it.

    A map is one channel of one sample, so `maps` is the number of channels times the number of samples.
    """

    grid: tuple[int, ...]
    channels: int
    maps: int


def example_inputs(model: nn.Module, inputs: Inputs | None) -> tuple[Tensor, ...] | None:
    """Return example inputs without values.

    They are made from `inputs` where given, else from the shape of one patch that the network states. The result is
    None where neither is known. Raises `ValueError` for `inputs` that are no shape.
    """
    if inputs is None:
        inputs = getattr(getattr(model, "spec", model), "example_shape", None)
        if inputs is None:
            return None
    given = (inputs,) if isinstance(inputs, Tensor) or not isinstance(inputs, Sequence) else tuple(inputs)
    tensors = tuple(value.detach().to("meta") for value in given if isinstance(value, Tensor))
    if tensors and len(tensors) == len(given):
        return tensors
    if tensors or not given or not all(isinstance(length, int) and length >= 1 for length in given):
        shown = "mixed with tensors" if tensors else given
        raise ValueError(
            f"shape={shown} is not an input shape: give (N, C, *grid), whole numbers >= 1, or tensors only"
        )
    dtypes = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    try:
        return (torch.empty(torch.Size(given), device="meta", dtype=dtypes[0] if dtypes else None),)  # type: ignore[arg-type]
    except (RuntimeError, OverflowError, TypeError):
        raise ValueError(f"shape={given} is larger than any tensor can be: give the shape of one input") from None


def run_on_copy(
    model: nn.Module, inputs: tuple[Tensor, ...], action: Callable[[nn.Module, tuple[Tensor, ...]], Result]
) -> Result:
    """Return `action(copy, inputs)` for a copy of the network in evaluation mode.

    The copy and the inputs have no values. A network that creates tensors of its own or looks at values cannot run so;
    `action` is then called again with a copy that has values, and with inputs of zeros.
    """
    with torch.no_grad(), kernels.use("never"):  # a counter cannot look into a fused kernel
        with contextlib.suppress(Exception):
            return action(copy.deepcopy(model).to("meta").eval(), inputs)
        try:
            zeros = tuple(torch.zeros(value.shape, dtype=value.dtype, device=device_of(model)) for value in inputs)
            return action(copy.deepcopy(model).eval(), zeros)
        except Exception as error:
            shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
            reason = str(error).split("\n")[0]
            raise ValueError(f"{type(model).__name__} does not run on an input of shape {shapes}: {reason}") from error


def gate_calls(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[GateCall]]:
    """Return, for each site, the calls of its gate or of the mixer in its place in one forward pass on such inputs."""

    def run(copied: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[GateCall]]:
        calls = record_calls(copied)
        copied(*inputs)
        return calls

    return run_on_copy(model, inputs, run)


def record_calls(copied: nn.Module) -> dict[str, list[GateCall]]:
    """Add hooks to a copy of a network and return the lists, by site, that its later forward passes will fill."""
    calls: dict[str, list[GateCall]] = {}
    for site, operator in operators_of(copied).items():
        calls[site] = []
        operator.register_forward_pre_hook(_recorder(calls[site], operator.dims), with_kwargs=True)
    return calls


def _recorder(calls: list[GateCall], dims: int) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor]], None]:
    def record(gate: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = inputs[0] if inputs else named["x"]
        *leading, channels = x.shape[:-dims]
        calls.append(GateCall(tuple(x.shape[-dims:]), channels, channels * torch.Size(leading).numel()))

    return record


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the network's first parameter or buffer; the CPU for a network without any."""
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
