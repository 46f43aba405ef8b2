"""The process that opens HDF5 files for `fheat.io.h5`, so that a malicious file can break this process only.

Each line of standard input is a request: `{"path", "limit", "timeout"}`. The answer is one line of JSON, either
`{"error": [reason, remedy]}` or `{"arrays": [[name, dtype, shape], ...]}`, and then the bytes of the arrays. If the
system can fork, each file gets a process of its own with bounded memory and time, so that a file cannot affect the next
one. The arguments are the folders of the parent's packages.
"""

import contextlib
import json
import os
import signal
import sys
from typing import Any

HEADROOM = 512 * 2**20
"""Bytes of address space for Python, numpy and HDF5 themselves."""
CHECK = "check how the file was written"


class Refused(Exception):  # noqa: N818 - the name says what happened to the file
    """A file that must not or cannot be read; the arguments are reason and remedy."""


def main() -> None:
    """Answer requests until the input ends, or until the process of a file has died; then exit with its status."""
    sys.path.extend(sys.argv[1:])
    with contextlib.suppress(ImportError):  # the answer to each request names the missing package
        import h5py  # noqa: F401 - loaded before the forks, so that each starts at once
    for line in sys.stdin:
        request = json.loads(line)
        if not hasattr(os, "fork"):
            answer(request)
            continue
        child = os.fork()
        if child == 0:
            confine(request["limit"], request["timeout"])
            answer(request)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            sys.exit(abs(status))


def confine(limit: int, timeout: float) -> None:
    """Limit the memory and the lifetime of this process, and prevent a core file."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = limit + HEADROOM
    with contextlib.suppress(ValueError, OSError):  # some systems have the limit but do not allow to set it
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout)


def answer(request: dict[str, Any]) -> None:
    """Read one file and write the answer, also for any error short of the death of the process."""
    try:
        arrays = read(request["path"], request["limit"])
    except Refused as error:
        reply: dict[str, Any] = {"error": error.args}
        arrays = {}
    except ImportError:
        reply, arrays = {"error": ("needs the package h5py", "install fheat[h5]")}, {}
    except MemoryError:
        reply, arrays = {"error": ("needs more memory than its size allows", CHECK)}, {}
    except Exception as error:  # h5py raises many kinds of errors on damaged files
        reply, arrays = {"error": (f"is damaged ({error})", "copy it again from its source")}, {}
    else:
        reply = {"arrays": [[name, data.dtype.str, data.shape] for name, data in arrays.items()]}
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    for data in arrays.values():
        sys.stdout.buffer.write(data.data)
    sys.stdout.buffer.flush()


def read(path: str, limit: int) -> dict[str, Any]:
    """Return the arrays `image` and, if there is one, `label`, contiguous and in native byte order."""
    import h5py
    import numpy

    try:
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        if error.errno is None:  # an error of the library, not of the system
            raise
        raise Refused(f"cannot be read ({os.strerror(error.errno)})", "check the path and its permissions") from None
    with file:
        if "image" not in file:
            raise Refused(f"has no dataset 'image', only {sorted(file)[:8]}", CHECK)
        names = [name for name in ("image", "label") if name in file]
        datasets = {name: plain_dataset(h5py, file, name) for name in names}
        declared = sum(data.size * data.dtype.itemsize for data in datasets.values())
        if declared > limit:
            raise Refused(f"declares {declared:,} bytes, over the limit of {limit:,}", "raise the limit if it is meant")
        arrays = {}
        for name, data in datasets.items():
            native = numpy.dtype("u1") if data.dtype.kind == "b" else data.dtype.newbyteorder("=")
            arrays[name] = numpy.empty(data.shape, native)
            data.read_direct(arrays[name])
        return arrays


def plain_dataset(h5py: Any, file: Any, name: str) -> Any:
    """Return a dataset whose voxels are in this file, or raise `Refused`: links and external data lead elsewhere."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise Refused(f"field {name} is a link to another place", "write the voxels into the file itself")
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        raise Refused(f"field {name} is a group, not a dataset", CHECK)
    if data.is_virtual or data.external:
        raise Refused(f"field {name} is kept in other files", "write the voxels into the file itself")
    if data.dtype.kind not in "iufb" or data.dtype.itemsize > 8:
        raise Refused(f"field {name} has type {data.dtype}: expected integers or floats", CHECK)
    if data.shape is None or len(data.shape) != 3 or 0 in data.shape:
        raise Refused(f"field {name} has shape {data.shape}: expected (X, Y, Z)", CHECK)
    return data


if __name__ == "__main__":
    main()
