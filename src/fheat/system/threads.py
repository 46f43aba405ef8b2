"""How many threads torch uses for one operation, for a while.

Torch has one number for the process, which a thread takes over when it first uses torch, and the thread's own, which
`torch.get_num_threads` returns. `torch.set_num_threads` sets both.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, Thread, local

import torch

_lock = Lock()
_bodies, _usual = 0, 0
"""Number of bodies of `limited_threads` that run now, and the number of threads of the process outside of them."""
_limits = {1}
"""Numbers of threads that such bodies had, which a thread may have taken over."""
_here = local()


def one_thread() -> AbstractContextManager[None]:
    """Let torch use one thread in the body, for operations beside a runtime that has threads of its own.

    Between two operations the other threads of torch do not sleep but spin, on processors that the runtime needs.
    """
    return limited_threads(1)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads in the body, or as many as in the body around it, if these are fewer.

    A thread that first uses torch while a body runs elsewhere keeps its number, too, until it leaves a body of its own;
    several bodies may run at once. Afterwards process and thread have the numbers they had.
    """
    global _bodies, _usual
    own = torch.get_num_threads()
    if getattr(_here, "inside", False):
        torch.set_num_threads(min(count, own))
        try:
            yield
        finally:
            torch.set_num_threads(own)
        return
    with _lock:
        if _bodies == 0:
            _usual = _of_the_process()
        _bodies += 1
        taken_over = own in _limits
        _limits.add(count)
    try:
        _here.inside = True
        torch.set_num_threads(count)
        yield
    finally:
        with _lock:
            torch.set_num_threads(_usual if taken_over else own)
            if not taken_over and own != _usual:
                _in_a_new_thread(lambda: torch.set_num_threads(_usual))
            _bodies -= 1
        _here.inside = False


def usual_threads() -> int:
    """Return the number of threads that torch uses here outside of every body of `limited_threads`.

    A thread with the number of such a body cannot tell whether it took that over: it is asked for the number of the
    process.
    """
    own = torch.get_num_threads()
    with _lock:
        if own not in _limits:
            return own
        return _usual if _bodies else _of_the_process()


def _of_the_process() -> int:
    answers: list[int] = []
    _in_a_new_thread(lambda: answers.append(torch.get_num_threads()))
    return answers[0]


def _in_a_new_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread that has not used torch, and so has the number of the process."""
    thread = Thread(target=function)
    thread.start()
    thread.join()
