"""How the C library keeps memory that was given back."""

import contextlib
import ctypes
import sys
from typing import Final

LARGE: Final = 2**20
"""Number of bytes from which on a block is returned to the system as soon as it is released."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of the two parameters in malloc.h of glibc."""


def return_large_blocks() -> None:
    """Let released blocks of a megabyte or more go back to the system at once, so that a memory bound can be kept.

    By itself glibc raises this size to that of the largest block that was released, up to 32 MB, and places blocks
    below it among small ones, which then keep them: a prediction would hold up to 200 MB more than it uses. Where the C
    library is another one, nothing is changed.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, LARGE)
        library.mallopt(_TRIM_THRESHOLD, LARGE)
