"""What training decided about each gate: read it, retire it, merge it, cost it.

`fheat.allocation` is this room and, called, the table: `fheat.allocation(model)` runs `table.allocation`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from fheat.allocation.sites import Inputs
    from fheat.allocation.table import Allocation


class _Room(ModuleType):
    """Importing any file of this room makes Python bind `fheat.allocation` to the room, so the room takes the call."""

    def __call__(self, model: "nn.Module", shape: "Inputs | None" = None) -> "Allocation":
        """Read the gates of any network, see `fheat.allocation.table.allocation`."""
        from fheat.allocation.table import allocation

        return allocation(model, shape)


sys.modules[__name__].__class__ = _Room
