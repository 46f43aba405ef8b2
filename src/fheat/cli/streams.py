"""Standard streams in any state: closed, read by nobody, on a full disk, or with an encoding that lacks characters."""

import io
import os
import select
import stat
import sys
from contextlib import suppress
from typing import IO


def prepare_streams() -> None:
    """Make printing safe: a stream that is closed goes nowhere, and what it cannot encode is written as escape.

    Where a standard stream is closed, the first file that is opened would get its number, and everything that is
    printed with it; and `print` takes standard output for a standard error that is missing.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            _to_nowhere(number)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name is shown, whatever the terminal can print


def say(line: str) -> None:
    """Print a line on standard error, if anybody can read it."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def reader_left() -> bool:
    """Return whether standard output or standard error is a pipe whose reader has left."""
    return any(map(_is_broken, (sys.stdout, sys.stderr)))


def goes_nowhere() -> bool:
    """Return whether standard output is the null device, to which rich sends it once its reader has left."""
    with suppress(OSError, ValueError):
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.stat(os.devnull))
    return False


def drop_output() -> None:
    """Forget what could not be printed: Python would try again at its end and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                _to_nowhere(stream.fileno())


def _is_broken(stream: IO[str]) -> bool:
    try:
        number = stream.fileno()
        kind = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) or not hasattr(select, "poll"):
            return stat.S_ISFIFO(kind)
        asked = select.poll()
        asked.register(number, select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))
    except (OSError, ValueError):  # a stream of a test, or one that is closed
        return False


def _to_nowhere(number: int) -> None:
    """Open a standard stream by its number, to nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
