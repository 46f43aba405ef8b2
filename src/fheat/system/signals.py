"""Signals that ask a program to stop, and the exit codes that say so."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT: Final = {signal.SIGINT: 130, signal.SIGTERM: 143}


def exit_code(number: int) -> int:
    """Return the exit code of a program that was stopped by a signal."""
    return EXIT[signal.Signals(number)]


@contextmanager
def handling(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `stop` with the number of each signal that asks to stop, while the body runs.

    In another thread than the main one, which gets all signals, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, stop) for number in EXIT}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
