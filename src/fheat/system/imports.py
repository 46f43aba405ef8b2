"""Imports that leave out what nobody wants: packages that take long, and one that reports its use to its makers."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, Final

_MAKING: Final = Lock()


def import_nibabel() -> None:
    """Import nibabel without pydicom, which takes a tenth of a second.

    nibabel needs pydicom for one extension of NIfTI headers, which this package does not read. Only programs of this
    package call this: in a program of a user, nibabel stays what it is.
    """
    with _hidden("pydicom"):
        import_module("nibabel")


def import_openvino() -> Any:
    """Import OpenVINO, and return it, without the package with which it tells its makers that it was imported.

    That package would start a process and a connection. OpenVINO does without where it is not installed.
    """
    with _hidden("openvino_telemetry"):
        return import_module("openvino")


def openvino_core() -> Any:
    """Return the one `openvino.Core` of this process, which stays until the process ends.

    A Core gives the thread that first uses it a stack for signal handlers, and frees that stack when it is deleted. If
    another thread deletes it, the first one keeps the address, and the next signal, such as Ctrl-C, ends the process
    with a segmentation fault.
    """
    with _MAKING:
        return _core_of(os.getpid())  # a forked process cannot use the threads of its parent's


@cache
def _core_of(process: int) -> Any:
    return import_openvino().Core()


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Let imports in the body find no package of this name, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # which is how Python notes that there is none
    try:
        yield
    finally:
        del sys.modules[name]
