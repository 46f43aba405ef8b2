"""The gates that `fheat.instrument` placed in a network, in its model folder: described, and placed again."""

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from fheat.gates.hook import GateHook, place, placed_by
from fheat.models.card import PlacedGate
from fheat.ops.heat import FractionalHeat
from fheat.system.errors import BadInput


def placed_gates(gates: Iterable[FractionalHeat]) -> tuple[PlacedGate, ...]:
    """Return the description of those gates that were placed, retired ones included.

    Raises `ValueError` for a gate whose grid is a function, which a folder cannot hold.
    """
    placed = []
    for hook in filter(None, map(placed_by, gates)):
        if callable(hook.grid):
            raise ValueError(f"the gate at {hook.site!r} has a function as its grid: give instrument the grid itself")
        placed.append(PlacedGate.model_validate(vars(hook)))
    return tuple(placed)


def place_gates(model: nn.Module, placed: Iterable[PlacedGate], path: Path) -> None:
    """Place gates in a new network, in place, or raise `BadInput` that names the file and the site."""
    for one in placed:
        hook = GateHook(**dict(one))
        try:
            place(model, hook)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).split("\n")[0]
            where = f"field instrumented: no gate can be placed at {hook.site[:80]!r} ({reason})"
            raise BadInput(path, where, "write the folder again with fheat.save") from None
