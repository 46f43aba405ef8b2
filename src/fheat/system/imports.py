"""Imports that leave out what nobody wants: packages that take long, and one that reports its use to its makers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


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
