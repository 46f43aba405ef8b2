"""Signals that ask a program to stop, and the exit codes that say so.

Three ways to answer: `interruptible` stops at once, `finishing` finishes the file in work first, and `handling` leaves
it to the caller, as in training, which saves its state after an iteration.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT: Final = {signal.SIGINT: 130, signal.SIGTERM: 143}
GRACE: Final = 5.0
"""Seconds for the file in work after a signal: Docker kills after 10, Slurm after 30."""

MOMENT: Final = 0.01
"""Seconds after which an interruption that was lost is raised again."""


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


def obey_parent() -> None:
    """Make this worker process leave the terminal's signals to its parent, and end orderly when that ends it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(exit_code(number))  # so that what is half written is removed, and nothing is printed

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` with the exit code, while the body runs, for each signal that asks to stop.

    Python prints and forgets what is raised while an object is deleted; there it is raised again, a moment later.
    """
    usual, lost = sys.unraisablehook, list[int]()

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(exit_code(number) if number in EXIT else next(reversed(lost), 130))

    def later(ignored: "sys.UnraisableHookArgs") -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt) or not hasattr(signal, "setitimer"):
            usual(ignored)
            return
        lost.append(next(iter(ignored.exc_value.args), 130))
        signal.setitimer(signal.ITIMER_REAL, MOMENT)

    with handling(stop), _alarm(stop):
        sys.unraisablehook = later
        try:
            yield
        finally:
            sys.unraisablehook = usual


@contextmanager
def finishing(grace: float = GRACE) -> Iterator[None]:
    """Let the body come to its end when a signal asks to stop, then pass the signal on to who handled it before.

    A second signal, or `grace` seconds on systems with timers, raise `KeyboardInterrupt` with the exit code in the
    body. In another thread than the main one nothing happens.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if received or grace <= 0:
            raise KeyboardInterrupt(exit_code(received[0] if received else number))
        received.append(number)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, grace)

    with handling(stop), _alarm(stop):
        yield
    if received:
        signal.raise_signal(received[0])


@contextmanager
def _alarm(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `stop` when the timer ends, and leave no timer behind."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
