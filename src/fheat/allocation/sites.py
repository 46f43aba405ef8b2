"""See what reaches each gate of a network."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat


@dataclass(frozen=True)
class Visit:
    """One call of a gate: the grid and the number of channels it saw (batch included)."""

    grid: tuple[int, ...]
    channels: int


def input_shape(model: nn.Module, shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the shape to run the network on: the caller's, or (1, in_channels, *patch_size), or None if unknown."""
    if shape is not None:
        full = tuple(shape)
        if not full or not all(isinstance(length, int) and length >= 1 for length in full):
            raise ValueError(f"shape={full} is not an input shape: give (N, C, *grid), whole numbers of at least 1")
        return full
    channels, patch_size = getattr(model, "in_channels", None), getattr(model, "patch_size", None)
    return None if channels is None or patch_size is None else (1, channels, *patch_size)


def weightless(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode whose tensors have shapes but no values; running it computes nothing."""
    return copy.deepcopy(model).to("meta").eval()


def visits(model: nn.Module, shape: Sequence[int]) -> dict[str, list[Visit]]:
    """Return, for each site, what every call of its gate sees when the network gets an input of this shape."""
    ghost = weightless(model)
    seen: dict[str, list[Visit]] = {}
    for site, gate in gates_of(ghost).items():
        calls = seen.setdefault(site, [])

        def record(gate: nn.Module, inputs: tuple[Tensor, ...], calls: list[Visit] = calls) -> None:
            assert isinstance(gate, FractionalHeat)
            grid = tuple(inputs[0].shape[-gate.dims :])
            calls.append(Visit(grid, inputs[0].shape[: -gate.dims].numel()))

        gate.register_forward_pre_hook(record)
    with torch.no_grad():
        ghost(torch.empty(*shape, device="meta"))
    return seen
