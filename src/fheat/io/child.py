"""The process in which files from outside are parsed, so that a malicious file can break this process only.

`fheat.io.confined` starts it. Each line of standard input is a request: `{"kind", "path", "files", "folder", "limit",
"seconds"}`, where `folder` is the one that a relative path starts from, and for a DICOM SEG `"series"`, the folder that
it was drawn on. The answer is one line of JSON and then the bytes of the arrays. The line is `{"error": [path, reason,
remedy]}`, or `{"arrays": [[name, dtype, shape, order], ...], "affine"}` with the order "C" or "F" of the bytes, or
`{"series": [...]}`; all have `"warnings": [[class, text], ...]`.

The process has bounded memory and time. Formats whose parsers are large libraries in C, HDF5 and the compressed pixels
of DICOM, are read in a fork of it where the system can fork, so that such a file cannot affect the next one. The
arguments are the folders of the parent's packages.
"""

import contextlib
import ctypes
import importlib
import json
import os
import pathlib
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import IO, Any

HEADROOM = 2**30
"""Bytes of address space for Python and the libraries themselves."""
COPIES = 5
"""Largest number of bytes in memory for each byte of voxels: as stored, and scaled from one byte to four."""
MOST_FILES = 64
"""Largest number of open files."""
LIBRARIES = {
    "nifti": ("fheat.io.nifti",),
    "nrrd": ("fheat.io.nrrd", "nrrd"),
    "dicom": ("fheat.io.dicom", "fheat.io.dicom_series", "pydicom", "pydicom.pixels.decoders"),
    "seg": ("fheat.io.dicom_seg", "pydicom", "pydicom.pixels.decoders", "highdicom"),
    "h5": ("fheat.io.h5", "h5py"),
}
"""Modules that a format needs."""
ENDINGS = {".nrrd": "nrrd", ".dcm": "seg"}
"""Formats of files by their ending; all others are NIfTI."""
OWN_PROCESS = ("dicom", "seg", "h5")
"""Formats of which each file, or each series, is read in a process of its own."""


def main() -> None:
    """Answer requests until the input ends, or until the process of a file has died; then exit with its status."""
    sys.path[:] = sys.argv[1:]
    sys.dont_write_bytecode = True
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the parent hears them too, and ends this process when it is time
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is not an answer
    if hasattr(select, "poll"):
        threading.Thread(target=end_with_the_parent, daemon=True).start()
    importlib.import_module("fheat.system.imports").import_nibabel()
    importlib.import_module("fheat.io")  # which every format needs, while the parent may still be busy
    for line in sys.stdin.buffer:
        request = json.loads(line)
        kind = kind_of(request)
        load_libraries(kind)
        if kind in OWN_PROCESS and hasattr(os, "fork"):
            status = answer_in_a_fork(request, answers)
            if status != 0:
                sys.exit(abs(status))
        else:
            with confined(request["limit"], request["seconds"]):
                answer(request, answers)


def end_with_the_parent() -> None:
    """Wait for the end of the input, which is that of the parent, and exit at once, whatever is being read."""
    hung_up = select.poll()
    hung_up.register(sys.stdin.fileno(), 0)  # with 0 it waits for the end alone, not for a request
    hung_up.poll()
    os._exit(0)


def kind_of(request: dict[str, Any]) -> str:
    """Return the format of the file, as far as its name tells."""
    path = os.path.join(request["folder"], request["path"])
    if request["kind"] in ("h5", "seg"):
        return str(request["kind"])
    if os.path.isdir(path):
        return "dicom"
    return next((kind for ending, kind in ENDINGS.items() if path.endswith(ending)), "nifti")


def load_libraries(kind: str) -> None:
    """Import what the file will need, before a fork and before memory is limited."""
    with contextlib.suppress(ImportError):  # the answer to the request names the missing package
        for module in LIBRARIES[kind]:
            importlib.import_module(module)


def answer_in_a_fork(request: dict[str, Any], answers: IO[bytes]) -> int:
    """Answer in a process of the file's own and return how that ended."""
    server = os.getpid()
    child = os.fork()
    if child == 0:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that forked it
            if os.getppid() != server:  # which has ended before that
                os._exit(1)
        with confined(request["limit"], request["seconds"]):
            answer(request, answers)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def confined(limit: int, seconds: float) -> Iterator[None]:
    """Limit memory, time and files of this process; no file is written, and no core file if it crashes."""
    if os.name != "posix":
        yield
        return
    import resource

    memory = min(COPIES * limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) + HEADROOM
    for name, wanted in (
        ("RLIMIT_AS", memory),
        ("RLIMIT_CPU", int(time.process_time() + seconds) + 1),
        ("RLIMIT_NOFILE", MOST_FILES),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
    ):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system has and allows all of them
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            resource.setrlimit(number, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def answer(request: dict[str, Any], answers: IO[bytes]) -> None:
    """Read one file and write the answer, also for any error short of the death of the process."""
    arrays: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # the files of this process are no concern of the parent
        try:
            os.chdir(request["folder"])
            reply: dict[str, Any]
            if request["kind"] == "series":
                reply = {"series": listed(request["path"], request["limit"])}
            else:
                arrays, affine = read(request)
                described = [(name, data.dtype.str, data.shape, order_of(data)) for name, data in arrays.items()]
                reply = {"arrays": described, "affine": affine}
        except MemoryError:
            reply = {"error": (request["path"], "needs more memory than its size allows", "check how it was written")}
        except Exception as error:  # `BadInput`, or what a library raises on a damaged file and no reader foresaw
            reply = {"error": refusal(request["path"], error)}
    reply["warnings"] = [(warning.category.__name__, str(warning.message)) for warning in heard]
    answers.write(json.dumps(reply).encode() + b"\n")
    for data in arrays.values():
        answers.write((data.T if order_of(data) == "F" else data).data.cast("B"))
    answers.flush()


def refusal(path: str, error: Exception) -> tuple[str, str, str]:
    """Return path, reason and remedy of an error."""
    from fheat.system.errors import BadInput

    if isinstance(error, BadInput):
        return str(error.path), error.reason, error.remedy
    return path, f"is damaged ({type(error).__name__}: {error})", "copy it again from its source"


def listed(path: str, limit: int) -> list[dict[str, Any]]:
    """Return the DICOM series of a folder, each as a mapping."""
    from dataclasses import asdict

    from fheat.io.dicom_series import parse_series

    return [asdict(one) for one in parse_series(path, limit=limit)]


def read(request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the arrays of a file by name, each contiguous, and their affine as nested lists, if the file states it."""
    import numpy

    kind, path, limit = request["kind"], request["path"], request["limit"]
    if kind == "h5":
        from fheat.io.h5 import parse_h5

        return parse_h5(path, limit), None
    if kind == "seg":
        from fheat.io import parse_seg

        volume = parse_seg(path, request["series"], limit=limit)
    else:
        from fheat.io import parse_volume

        volume = parse_volume(path, files=[pathlib.Path(file) for file in request["files"]], limit=limit)
    data = volume.data
    contiguous = data.flags.c_contiguous or data.flags.f_contiguous
    return {"image": data if contiguous else numpy.asfortranarray(data)}, volume.affine.tolist()


def order_of(data: Any) -> str:
    """Return the order in which the elements of a contiguous array lie in memory."""
    return "F" if data.flags.f_contiguous else "C"


if __name__ == "__main__":
    main()
