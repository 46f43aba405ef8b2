"""How many threads torch uses for one operation, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_bodies, _usual = 0, 0
"""Number of bodies of `one_thread` that run now, and the number of threads outside of them."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the body, for operations beside a runtime that has threads of its own.

    Between two operations the other threads of torch do not sleep but spin, on processors that the runtime needs. A
    thread that first uses torch while a body runs elsewhere keeps one thread, too; several bodies may run at once.
    """
    global _bodies, _usual
    with _lock:
        if _bodies == 0:
            _usual = torch.get_num_threads()
        _bodies += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_usual)
        with _lock:
            _bodies -= 1


def usual_threads() -> int:
    """Return the number of threads that torch uses outside of every body of `one_thread`."""
    with _lock:
        return _usual if _bodies else torch.get_num_threads()
