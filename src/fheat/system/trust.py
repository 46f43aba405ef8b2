"""Whether files that are read are one's own: then scans are parsed in this process, else in a confined one.

The answer is kept in the environment, so that it holds for all threads and for the processes that are started.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

VARIABLE: Final = "FHEAT_TRUST"
"""Environment variable that is 1 where files are trusted."""


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Read scans in this process inside the `with` block, at full speed: for files of one's own. False changes nothing.

    It holds for all threads, and for processes that are started in the block. HDF5 files are not affected.
    """
    before = os.environ.get(VARIABLE)
    if trust:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def is_trusting() -> bool:
    """Return whether scans are read in this process."""
    return os.environ.get(VARIABLE) == "1"
