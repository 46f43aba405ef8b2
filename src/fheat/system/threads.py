"""How many threads torch uses for one operation, for a while.

Torch has one number for the process, which a thread takes over when it first uses torch, and the thread's own, which
`torch.get_num_threads` returns. `torch.set_num_threads` sets both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread, local

import torch

_lock = Lock()
_bodies, _usual = 0, 0
"""Number of bodies of `one_thread` that run now, and the number of threads of the process outside of them."""
_here = local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the body, for operations beside a runtime that has threads of its own.

    Between two operations the other threads of torch do not sleep but spin, on processors that the runtime needs. A
    thread that first uses torch while a body runs elsewhere keeps one thread, too, until it leaves a body of its own;
    several bodies may run at once. Afterwards process and thread have the numbers they had.
    """
    global _bodies, _usual
    if getattr(_here, "inside", False):
        yield
        return
    own = torch.get_num_threads()
    with _lock:
        if _bodies == 0:
            _usual = _of_the_process()
        _bodies += 1
    try:
        _here.inside = True
        torch.set_num_threads(1)
        yield
    finally:
        with _lock:
            torch.set_num_threads(own if own > 1 else _usual)
            if own not in (1, _usual):
                _in_a_new_thread(lambda: torch.set_num_threads(_usual))
            _bodies -= 1
        _here.inside = False


def usual_threads() -> int:
    """Return the number of threads that torch uses here outside of every body of `one_thread`.

    A thread with one thread of its own cannot tell whether it took that over from a body: it is asked for the number of
    the process.
    """
    own = torch.get_num_threads()
    with _lock:
        return own if own > 1 else _usual if _bodies else _of_the_process()


def _of_the_process() -> int:
    answers: list[int] = []
    _in_a_new_thread(lambda: answers.append(torch.get_num_threads()))
    return answers[0]


def _in_a_new_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread that has not used torch, and so has the number of the process."""
    thread = Thread(target=function)
    thread.start()
    thread.join()
