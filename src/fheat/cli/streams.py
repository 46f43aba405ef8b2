"""Standard streams in any state: closed, read by nobody, on a full disk, or with an encoding that lacks characters.

Whoever reads what a verb prints may leave before its end, as `head -1` does. Verbs write files, and these matter more
than lines that nobody reads: the work goes on, and the rest of what it prints goes nowhere.
"""

import errno
import io
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_LEFT: Final = (errno.EPIPE, errno.ECONNRESET, *([errno.EINVAL] if os.name == "nt" else []))
"""Error numbers with which writing to a pipe or a socket fails once its reader has left."""


class Pipe(io.FileIO):
    """The pipe or the socket that a stream writes to; once its reader has left, its number leads nowhere."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream  # which would close the number if nobody held it

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write bytes and return how many were written: all, where nobody reads them any more."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _LEFT:
                raise
            _to_nowhere(self.fileno())
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Make printing safe: a stream that is closed goes nowhere, as does one whose reader leaves, and what a stream
    cannot encode is written as escape.

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
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name is shown, whatever the terminal can print
            if _is_pipe(stream):
                setattr(sys, name, _unstoppable(stream))


def _is_pipe(stream: io.TextIOWrapper) -> bool:
    """Return whether a stream is a pipe or a socket as Python opened it."""
    if isinstance(getattr(stream.buffer, "raw", stream.buffer), Pipe):
        return False  # it is one of ours
    try:
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # a stream of a test, or one that is closed
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)


def _unstoppable(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to the same pipe that goes on when its reader leaves."""
    with suppress(OSError):  # what was printed until now
        stream.flush()
    pipe = Pipe(stream)
    return io.TextIOWrapper(
        io.BufferedWriter(pipe) if isinstance(stream.buffer, io.BufferedWriter) else pipe,  # python -u has no buffer
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def say(line: str) -> None:
    """Print a line on standard error, if anybody can read it."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def drop_output() -> None:
    """Forget what could not be printed: Python would try again at its end and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                _to_nowhere(stream.fileno())


def _to_nowhere(number: int) -> None:
    """Open a standard stream by its number, to nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
