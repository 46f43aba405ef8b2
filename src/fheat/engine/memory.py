"""What to say when there is not enough memory: which settings to lower."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fheat.errors import BadInput

_HOST = "can't allocate memory"
"""What torch says on a CPU, in a RuntimeError."""


@contextmanager
def memory_for(what: str, where: Path | str, device: torch.device, remedy: str) -> Iterator[None]:
    """Turn running out of memory, on the host or on a GPU, into `BadInput` with a remedy."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if (
            isinstance(error, RuntimeError)
            and not isinstance(error, torch.OutOfMemoryError)
            and _HOST not in str(error)
        ):
            raise
        raise BadInput(where, f"{what} does not fit into the memory of {device}", remedy) from None
