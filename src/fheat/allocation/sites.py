"""Run a network on inputs that cost nothing, and see what reaches each of its gates."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat

Result = TypeVar("Result")
Inputs = Sequence[int] | Sequence[Tensor]
"""One input shape (N, C, *grid), or the example inputs themselves for networks that take several or other ones."""


@dataclass(frozen=True)
class Visit:
    """One call of a gate: the grid and the number of channels it saw (batch included)."""

    grid: tuple[int, ...]
    channels: int


def checked_inputs(model: nn.Module, inputs: Inputs | None) -> tuple[Tensor, ...] | None:
    """Return example inputs without values: the caller's, or one patch of a network that says its shape, or None."""
    if inputs is None:
        inputs = getattr(getattr(model, "recipe", model), "example_shape", None)
        if inputs is None:
            return None
    given = tuple(inputs)
    if given and all(isinstance(value, Tensor) for value in given):
        return tuple(value.detach().to("meta") for value in given if isinstance(value, Tensor))
    if not given or not all(isinstance(length, int) and length >= 1 for length in given):
        raise ValueError(f"shape={given} is not an input shape: give (N, C, *grid), whole numbers of at least 1")
    kinds = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    return (torch.empty(given, device="meta", dtype=kinds[0] if kinds else None),)


def run_copy(
    model: nn.Module, inputs: tuple[Tensor, ...], action: Callable[[nn.Module, tuple[Tensor, ...]], Result]
) -> Result:
    """Return `action(copy, inputs)` on a copy in evaluation mode, without values, or with zeros where that cannot be.

    A network that makes its own tensors or looks at values cannot run without; it runs once for real.
    """
    with torch.no_grad():
        try:
            return action(copy.deepcopy(model).to("meta").eval(), inputs)
        except Exception:
            zeros = tuple(torch.zeros(value.shape, dtype=value.dtype, device=_device(model)) for value in inputs)
        try:
            return action(copy.deepcopy(model).eval(), zeros)
        except Exception as error:
            shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
            reason = str(error).split("\n")[0]
            raise ValueError(f"{type(model).__name__} does not run on an input of shape {shapes}: {reason}") from error


def visits(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[Visit]]:
    """Return, for each site, what every call of its gate sees when the network gets inputs like these."""

    def listen(copied: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[Visit]]:
        seen: dict[str, list[Visit]] = {}
        for site, gate in gates_of(copied).items():
            calls = seen[site] = []
            gate.register_forward_pre_hook(_recorder(calls))
        copied(*inputs)
        return seen

    return run_copy(model, inputs, listen)


def _recorder(calls: list[Visit]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def record(gate: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(gate, FractionalHeat)
        grid = tuple(inputs[0].shape[-gate.dims :])
        calls.append(Visit(grid, inputs[0].shape[: -gate.dims].numel()))

    return record


def _device(model: nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
