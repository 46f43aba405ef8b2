"""Run a network on inputs that cost nothing, and see what reaches each of its gates."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from fheat.ops import kernels
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat

Result = TypeVar("Result")
Inputs = Sequence[int] | Sequence[Tensor]
"""One input shape (N, C, *grid), or the example inputs themselves for networks that take several or other ones."""


@dataclass(frozen=True)
class Visit:
    """One call of a gate: the grid, the channels, and the maps (channels of all samples) it saw."""

    grid: tuple[int, ...]
    channels: int
    maps: int


def checked_inputs(model: nn.Module, inputs: Inputs | None) -> tuple[Tensor, ...] | None:
    """Return example inputs without values: the caller's, or one patch of a network that says its shape, or None."""
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
    kinds = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    try:
        return (torch.empty(torch.Size(given), device="meta", dtype=kinds[0] if kinds else None),)  # type: ignore[arg-type]
    except (RuntimeError, OverflowError, TypeError):
        raise ValueError(f"shape={given} is larger than any tensor can be: give the shape of one input") from None


def run_copy(
    model: nn.Module, inputs: tuple[Tensor, ...], action: Callable[[nn.Module, tuple[Tensor, ...]], Result]
) -> Result:
    """Return `action(copy, inputs)` on a copy in evaluation mode, without values, or with zeros where that cannot be.

    A network that makes its own tensors or looks at values cannot run without; it runs once for real.
    """
    with torch.no_grad(), kernels.use("never"):  # a counter does not see into a fused kernel
        with contextlib.suppress(Exception):
            return action(copy.deepcopy(model).to("meta").eval(), inputs)
        try:
            zeros = tuple(torch.zeros(value.shape, dtype=value.dtype, device=device_of(model)) for value in inputs)
            return action(copy.deepcopy(model).eval(), zeros)
        except Exception as error:
            shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
            reason = str(error).split("\n")[0]
            raise ValueError(f"{type(model).__name__} does not run on an input of shape {shapes}: {reason}") from error


def visits(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[Visit]]:
    """Return, for each site, what every call of its gate sees when the network gets inputs like these."""

    def run(copied: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, list[Visit]]:
        seen = listen(copied)
        copied(*inputs)
        return seen

    return run_copy(model, inputs, run)


def listen(copied: nn.Module) -> dict[str, list[Visit]]:
    """Return what will hold, for each site of a copy, every call of its gate."""
    seen: dict[str, list[Visit]] = {}
    for site, gate in gates_of(copied).items():
        calls = seen[site] = []
        gate.register_forward_pre_hook(_recorder(calls), with_kwargs=True)
    return seen


def _recorder(calls: list[Visit]) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor]], None]:
    def record(gate: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        assert isinstance(gate, FractionalHeat)
        *leading, channels = (inputs[0] if inputs else named["x"]).shape[: -gate.dims]
        grid = tuple((inputs[0] if inputs else named["x"]).shape[-gate.dims :])
        calls.append(Visit(grid, channels, channels * torch.Size(leading).numel()))

    return record


def device_of(model: nn.Module) -> torch.device:
    """Return where the network lies, by its first tensor."""
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
