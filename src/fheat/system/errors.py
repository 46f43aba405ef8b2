"""The one error for input that cannot be used, and what is said of a full disk."""

import errno
import shutil
from pathlib import Path
from typing import Final

from fheat.system.text import printable

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors that say that a file does not fit: the disk is full, a quota is used up, a file is too large."""


class BadInput(Exception):  # noqa: N818 - the name is public and says what it is
    """A file or folder that is refused: which one, why, and what to do, in one printable line. The command line exits
    with 3."""

    def __init__(self, path: str | Path, reason: str, remedy: str) -> None:
        super().__init__(printable(f"{path}: {reason}; {remedy}"))
        self.path = Path(path)
        self.reason = reason
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["BadInput"], tuple[Path, str, str]]:
        return type(self), (self.path, self.reason, self.remedy)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def located(error: OSError, target: Path, needed: int | None = None) -> OSError:
    """Return an error of writing with its file, and for a full disk with the bytes that are needed, if known, and free.

    Python names no file where a write fails, only where opening one does.
    """
    if error.errno not in FULL:
        return error
    try:
        free = f"{shutil.disk_usage(target.parent).free:,} bytes are free"
    except OSError:
        free = "how much is free is not known"
    wanted = "" if needed is None else f"{needed:,} bytes are needed and "
    return OSError(error.errno, f"{error.strerror} ({wanted}{free})", str(target))
