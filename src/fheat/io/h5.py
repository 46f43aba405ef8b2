"""Reading the h5 files of the semi-supervised papers: a dataset `image`, perhaps a dataset `label`, no geometry.

The HDF5 library is known to write past its buffers on malformed files, so it never runs in this process. Another
process (`fheat.io.h5_child`) parses the file and sends back type, shape and voxels, which are checked like any input.
"""

import atexit
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from fheat.io import h5_child
from fheat.io.content import SIZE_LIMIT
from fheat.io.volume import Volume
from fheat.system.errors import BadInput

TIMEOUT: Final = 120.0
"""Longest time to read one file, in seconds."""
_LONGEST_LINE: Final = 2**16
"""Largest number of bytes of the first line of an answer."""
_CHECK: Final = "check how the file was written"
_COPY_AGAIN: Final = "copy it again from its source"


def read_h5(
    path: str | Path, *, spacing: Sequence[float] = (1.0, 1.0, 1.0), limit: int = SIZE_LIMIT
) -> tuple[Volume, Volume | None]:
    """Read image and label (None if the file has no label), or raise `BadInput`.

    Args:
        path: file with the dataset `image` (X, Y, Z) and perhaps `label` of the same shape.
        spacing: distance of voxels in millimetres, which the format does not store. The axes are assumed to point
            right, anterior, superior.
        limit: largest number of bytes of voxels; a file that declares more is refused.

    Stored types are kept (bool becomes uint8). Reading processes are kept between calls; threads do not share one.
    """
    idle = _IDLE[os.getpid()]
    try:
        reader = idle.pop()
    except IndexError:
        reader = H5Reader()
    try:
        return reader.read(path, spacing=spacing, limit=limit)
    finally:
        idle.append(reader)


class H5Reader:
    """One reading process, started on first need, and again if a file made it end. Not shared between threads.

    Use it in a `with` statement; `read_h5` has its own.
    """

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(
        self, path: str | Path, *, spacing: Sequence[float] = (1.0, 1.0, 1.0), limit: int = SIZE_LIMIT
    ) -> tuple[Volume, Volume | None]:
        """Read one file; see `read_h5`."""
        file = Path(path)
        if file.is_dir():
            raise BadInput(file, "is a folder", "give the file in it")
        arrays = self._request(file, limit)
        for name, data in arrays.items():
            if data.dtype.kind == "f" and not np.isfinite(data).all():
                count = int(np.count_nonzero(~np.isfinite(data)))
                raise BadInput(file, f"field {name} holds {count:,} voxels that are NaN or infinite", _CHECK)
        image, label = arrays["image"], arrays.get("label")
        affine = np.diag([*map(float, spacing), 1.0])
        if label is None:
            return Volume(image, affine), None
        if label.shape != image.shape:
            raise BadInput(file, f"field label has shape {label.shape}, the image {image.shape}", _CHECK)
        return Volume(image, affine), Volume(label, affine)

    def close(self) -> None:
        """End the process; a later read starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # a request that it did not read is still in the buffer
                cast("IO[bytes]", stream).close()
        process.wait()

    def _request(self, path: Path, limit: int) -> dict[str, NDArray[Any]]:
        """Send a request and return the answer. The process ends unless its answer is complete."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start()
        process, late = self._process, threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._timeout, stop)
        timer.start()
        complete = False
        try:
            assert process.stdin is not None
            request = {"path": os.path.abspath(path), "limit": limit, "timeout": self._timeout}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = _answer(path, process, limit)
            complete = True
        except (EOFError, BrokenPipeError):
            code = process.wait()
            if late.is_set() or code == 14:  # SIGALRM, from the timer of the reading process
                raise BadInput(path, f"took longer than {self._timeout:g} s to read", _COPY_AGAIN) from None
            raise BadInput(path, f"is damaged (the HDF5 library ended with code {abs(code)})", _COPY_AGAIN) from None
        except (ValueError, TypeError, KeyError, MemoryError, RecursionError):
            raise BadInput(path, "is damaged (the HDF5 library's answer makes no sense)", _COPY_AGAIN) from None
        finally:
            timer.cancel()
            if not complete or late.is_set():
                self.close()
        if isinstance(answer, BadInput):
            raise answer
        return answer


def _start() -> subprocess.Popen[bytes]:
    folders = [folder for folder in sys.path if folder]
    return subprocess.Popen(
        [sys.executable, "-I", h5_child.__file__, *folders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # The first setting forbids HDF5 to load filters from shared libraries; the second keeps forks single-threaded.
        env=os.environ | {"HDF5_PLUGIN_PRELOAD": "::", "OPENBLAS_NUM_THREADS": "1"},
    )


def _answer(path: Path, process: subprocess.Popen[bytes], limit: int) -> dict[str, NDArray[Any]] | BadInput:
    """Return the arrays or the refusal; raise EOFError if the answer ends early, ValueError or similar if it is bad."""
    assert process.stdout is not None
    line = process.stdout.readline(_LONGEST_LINE)
    if not line:
        raise EOFError
    reply = json.loads(line)
    if "error" in reply:
        reason, remedy = (" ".join(str(text).split())[:300] for text in reply["error"])
        return BadInput(path, reason, remedy)
    arrays = {name: _declared(kind, shape, limit) for name, kind, shape in reply["arrays"]}
    if not {"image"} <= arrays.keys() <= {"image", "label"}:
        raise ValueError(f"arrays {list(arrays)}")
    for data in arrays.values():
        _fill(process.stdout, data)
    return arrays


def _declared(kind: str, shape: Sequence[int], limit: int) -> NDArray[Any]:
    """Return an empty array of the declared type and shape, or raise `ValueError`; it takes no memory until filled."""
    dtype = np.dtype(kind)
    if dtype.kind not in "iuf" or len(shape) != 3 or min(shape) < 1 or math.prod(shape) * dtype.itemsize > limit:
        raise ValueError(f"{kind} {shape}")
    return np.empty(tuple(shape), dtype)


def _fill(stream: Any, data: NDArray[Any]) -> None:
    rest = data.data.cast("B")
    while rest:
        count = stream.readinto(rest)
        if not count:
            raise EOFError
        rest = rest[count:]


_IDLE: Final[defaultdict[int, list[H5Reader]]] = defaultdict(list)
"""Idle readers by process id, because a forked process must not use the readers of its parent."""


@atexit.register
def _close_idle() -> None:
    for reader in _IDLE.pop(os.getpid(), []):
        reader.close()
