"""The file that is left where the program fails in a way that nobody foresaw."""

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from fheat import __version__
from fheat.system.text import printable

PACKAGES: Final = ("torch", "numpy", "scipy", "nibabel", "safetensors", "pydantic", "tyro", "monai", "openvino")
"""Packages whose versions are stated."""
LONGEST: Final = 200_000
"""Number of characters of the traceback that are kept, from its end."""


def write_crash(error: BaseException, words: Sequence[str]) -> Path | None:
    """Write the traceback, the versions and the command to a new file for the user only; return None where none can be.

    Nothing else is written: no value of a variable and no voxel. The file is complete or not there.
    """
    try:
        number, fresh = tempfile.mkstemp(prefix=".fheat-crash-", suffix=".txt")  # which only the user can read
        target = Path(fresh).with_name(Path(fresh).name.removeprefix("."))
        try:
            with open(number, "wb") as file:
                file.write(crash_text(error, words).encode(errors="backslashreplace"))
                file.flush()
                os.fsync(file.fileno())
            Path(fresh).rename(target)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise
    except OSError:
        return None
    return target


def crash_text(error: BaseException, words: Sequence[str]) -> str:
    """Return what is known of a failure: command, versions, traceback."""
    trace = "".join(traceback.format_exception(error))[-LONGEST:]
    versions = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    return (
        f"command: fheat {printable(shlex.join(words))}\n"
        f"fheat {__version__}, Python {sys.version.split()[0]}, {platform.platform()}\n"
        f"{versions}\n\n{trace}"
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
