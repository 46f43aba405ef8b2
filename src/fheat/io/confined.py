"""Reading files from outside in another process, with bounded memory and time (`fheat.io.child`).

Libraries that unpack scans have written past their buffers on malformed files before, and will again. Here such a file
ends the process that reads it, and becomes `BadInput`. What that process answers is checked like any input.
"""

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from fheat.io import child
from fheat.io.content import COPY_AGAIN
from fheat.io.dicom_series import SeriesFacts, checked_series
from fheat.system.errors import BadInput

MOST_IDLE: Final = 2
"""Number of reading processes that wait for the next file, outside of `many_readers`; each holds about 60 MB."""
TIMEOUT: Final = 120.0
"""Time to read one file, in seconds, without the time that its bytes take."""
SLOWEST: Final = 4 * 2**20
"""Bytes that a slow disk reads, and a slow machine unpacks, in one second."""
_LONGEST_LINE: Final = 2**20
"""Largest number of bytes of the first line of an answer."""
_LONGEST_TEXT: Final = 2000
"""Largest number of characters of a reason."""
_PIPE: Final = 2**20
"""Bytes that a process can send ahead."""
_WARNINGS: Final = {kind.__name__: kind for kind in (RuntimeWarning, DeprecationWarning, FutureWarning)}
"""Classes of warnings that come over from the process as what they are; others become `UserWarning`."""
_LONGEST_LIST: Final = 2**25
"""Largest number of bytes of a list of series."""
Kind = Literal["volume", "h5", "seg", "series"]
"""Kind of content that is asked of a file or folder: a volume, the arrays of an h5 file, a DICOM SEG, or the list of
DICOM series."""


@dataclass(frozen=True)
class Content:
    """The arrays of a file by name, their affine where the file states one, and the series of a folder if asked for."""

    arrays: dict[str, NDArray[Any]]
    affine: NDArray[np.float64] | None
    series: tuple[SeriesFacts, ...] = ()


def read_confined(
    kind: Kind, path: str | Path, limit: int, files: Sequence[Path] = (), *, series: str | Path | None = None
) -> Content:
    """Read a file, or a folder with a series, in another process, or raise `BadInput`.

    `files` are the slices of the series, where the folder holds other files too. A DICOM SEG (`seg`) is read on the
    grid of `series`, the folder of the images that it was drawn on.

    Reading processes are kept between calls. Threads do not share one, so that as many files are read at a time as
    there are threads that read.
    """
    idle = _IDLE[os.getpid()]
    try:
        reader = idle.pop()
    except IndexError:
        reader = ConfinedReader()
    try:
        return reader.read(kind, path, limit, files, series=series)
    finally:
        if len(idle) < max(MOST_IDLE, *_WANTED):
            idle.append(reader)
        else:
            reader.close()


@contextlib.contextmanager
def many_readers(threads: int) -> Iterator[None]:
    """Keep a reading process for each of so many threads while the body runs; to start one takes half a second."""
    _WANTED.append(threads)
    try:
        yield
    finally:
        _WANTED.remove(threads)
        idle = _IDLE[os.getpid()]
        while len(idle) > max(MOST_IDLE, *_WANTED):
            idle.pop().close()


@contextlib.contextmanager
def reading_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield threads that read files, each with a reading process that is kept; an interruption waits for none."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="reading")
    with many_readers(count):
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def start_reader() -> None:
    """Start a reading process for the next `read_confined`, which then need not wait for its libraries to load."""
    idle = _IDLE[os.getpid()]
    if not idle:
        with contextlib.suppress(OSError):  # the read tries it again, and says why it cannot
            idle.append(ConfinedReader().start())


class ConfinedReader:
    """One reading process, started on first need, and again if a file made it end. Not shared between threads.

    Use it in a `with` statement; `read_confined` has its own.
    """

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(
        self, kind: Kind, path: str | Path, limit: int, files: Sequence[Path] = (), *, series: str | Path | None = None
    ) -> Content:
        """Read one file; see `read_confined`. The process ends unless its answer is complete."""
        file, process, late = Path(path), self._alive(), threading.Event()

        def stop() -> None:
            late.set()
            _kill(process)

        sources = [*(files or [file]), *([] if series is None else [Path(series)])]
        seconds = self._timeout + min(sum(map(_stored_bytes, sources)), limit) / SLOWEST
        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        complete = False
        try:
            _ask(process, kind, file, files, series, limit, seconds)
            answer = _answer(kind, file, series, process, limit)
            complete = True
        except (EOFError, BrokenPipeError):
            raise BadInput(file, _death(process.wait(), late.is_set(), seconds), COPY_AGAIN) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BadInput(file, "is damaged (the answer of its reader makes no sense)", COPY_AGAIN) from None
        finally:
            timer.cancel()
            if not complete or late.is_set():
                self.close()
        for name, text in answer.warnings:
            warnings.warn(text, _WARNINGS.get(name, UserWarning), stacklevel=4)
        if isinstance(answer.outcome, BadInput):
            raise answer.outcome
        return answer.outcome

    def start(self) -> Self:
        """Start the process before its first file comes, and return this reader."""
        self._alive()
        return self

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start()
        return self._process

    def close(self) -> None:
        """End the process; a later read starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # a request that it did not read is still in the buffer
                cast("IO[bytes]", stream).close()
        process.wait()


@dataclass(frozen=True)
class _Answer:
    """Answer of a reading process about a file, and the warnings that it heard, by class and text."""

    outcome: Content | BadInput
    warnings: tuple[tuple[str, str], ...]


def _start() -> subprocess.Popen[bytes]:
    folders, here = [folder for folder in sys.path if folder], str(Path(child.__file__).parents[2])
    if here not in folders:  # imported from the current folder, which has no name there
        folders.insert(0, here)
    process = subprocess.Popen(
        [sys.executable, "-I", child.__file__, *folders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # The first setting forbids HDF5 to load filters from shared libraries; the second keeps forks single-threaded.
        env=os.environ | {"HDF5_PLUGIN_PRELOAD": "::", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C in the terminal is for us
    )
    with contextlib.suppress(ImportError, AttributeError, OSError):  # only Linux can
        import fcntl

        assert process.stdout is not None
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a reading process, and the process of the file that it reads."""
    if process.poll() is None and os.name == "posix":
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _stored_bytes(path: Path) -> int:
    """Return the size of a file, or of the files in a folder; 0 where that cannot be said."""
    try:
        if path.is_dir():
            with os.scandir(path) as entries:
                return sum(entry.stat().st_size for entry in entries)
        return path.stat().st_size
    except OSError:
        return 0


def _ask(
    process: subprocess.Popen[bytes],
    kind: Kind,
    path: Path,
    files: Sequence[Path],
    series: str | Path | None,
    limit: int,
    seconds: float,
) -> None:
    folder = os.sep if path.is_absolute() else os.getcwd()
    request = {"kind": kind, "path": str(path), "folder": folder, "limit": limit, "seconds": seconds}
    request["files"] = [str(file) for file in files]
    if series is not None:
        request["series"] = os.path.abspath(series)
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()


def _answer(kind: Kind, path: Path, series: str | Path | None, process: subprocess.Popen[bytes], limit: int) -> _Answer:
    """Return the arrays or the refusal; raise EOFError if the answer ends early, ValueError or similar if it is bad."""
    assert process.stdout is not None
    line = process.stdout.readline(_LONGEST_LIST if kind == "series" else _LONGEST_LINE)
    if not line:
        raise EOFError
    reply = json.loads(line)
    heard = tuple((str(name), _one_line(text)) for name, text in reply["warnings"])
    if "error" in reply:
        said, reason, remedy = reply["error"]
        named = {Path(said), *Path(said).parents}  # the file, or a slice in the folder
        asked = {path} if series is None else {path, Path(os.path.abspath(series))}
        where = Path(said) if asked & named else path
        return _Answer(BadInput(where, _one_line(reason), _one_line(remedy)), heard)
    if kind == "series":
        return _Answer(Content({}, None, checked_series(reply["series"])), heard)
    arrays = {name: _declared(kind, shape, order, child.COPIES * limit) for name, kind, shape, order in reply["arrays"]}
    if not {"image"} <= arrays.keys() <= {"image", "label"}:
        raise ValueError(f"arrays {list(arrays)}")
    affine = None if reply["affine"] is None else np.array(reply["affine"], np.float64).reshape(4, 4)
    for data in arrays.values():
        _fill(process.stdout, data)
    return _Answer(Content(arrays, affine), heard)


def _declared(kind: str, shape: Sequence[int], order: Literal["C", "F"], limit: int) -> NDArray[Any]:
    """Return an empty array of the declared type and shape, or raise `ValueError`; it takes no memory until filled."""
    dtype = np.dtype(kind)
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "iuf" or len(shape) not in (3, 4) or min(shape) < 1 or size > limit or order not in ("C", "F"):
        raise ValueError(f"{kind} {shape} {order}")
    return np.empty(tuple(shape), dtype, order)


def _fill(stream: Any, data: NDArray[Any]) -> None:
    rest = (data.T if data.flags.f_contiguous else data).data.cast("B")
    while rest:
        count = stream.readinto(rest)
        if not count:
            raise EOFError
        rest = rest[count:]


def _death(code: int, late: bool, seconds: float) -> str:
    """Return the reason of a refusal by the code with which the reading process ended."""
    if late or abs(code) in (signal.SIGALRM, getattr(signal, "SIGXCPU", None)):
        return f"took longer than {seconds:.3g} s to read"
    return f"is damaged (the process that read it ended with code {abs(code)})"


def _one_line(text: Any) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(" " if unicodedata.category(one) == "Cc" else one for one in str(text)[:_LONGEST_TEXT])


_IDLE: Final[defaultdict[int, list[ConfinedReader]]] = defaultdict(list)
"""Idle readers by process id, because a forked process must not use the readers of its parent."""
_WANTED: Final[list[int]] = [0]
"""How many of them the bodies of `many_readers` that run now want to keep."""


@atexit.register
def _close_idle() -> None:
    for reader in _IDLE.pop(os.getpid(), []):
        reader.close()
