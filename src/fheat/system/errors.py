"""The one error for input that cannot be used, and what is said where a disk is full or a user is not allowed."""

import errno
import shutil
from pathlib import Path
from typing import Final

from fheat.system.text import printable

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors that say that a file does not fit: the disk is full, a quota is used up, a file is too large."""

NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of errors that say that a user may not write in a folder, or nobody may on a disk that is read-only."""


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

    @classmethod
    def of_line(cls, line: str) -> "BadInput":
        """Return the refusal that such a line says, as results keep it for each case."""
        path, _, rest = line.partition(": ")
        reason, _, remedy = rest.rpartition("; ")
        return cls(path, reason, remedy)


class NotReadable(BadInput):
    """A file or folder that this user may not read. The command line exits with 4."""


class NotWritable(PermissionError):  # noqa: N818 - as the one above
    """A folder in which nothing may be written. The command line exits with 4."""


def unreadable(path: str | Path, error: OSError) -> NotReadable:
    """Return the refusal of a file or folder that this user may not read, or that lies where nobody may look."""
    return NotReadable(path, f"cannot be read ({error.strerror})", "give yourself permission to read it")


def lacks_memory(error: BaseException) -> bool:
    """Return whether memory is short: torch has an error of its own for that on a GPU, and a sentence on a CPU."""
    said = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return said or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def located(error: OSError, target: Path, needed: int | None = None) -> OSError:
    """Return an error of writing as the user is told of it.

    Of a full disk it has the file, and the bytes that are needed, if known, and free: Python names no file where a
    write fails. Where nothing may be written it is `NotWritable` with the folder of the file: Python names the file
    beside the target that is written first, which nobody has asked for.
    """
    if error.errno in NOT_ALLOWED:
        return NotWritable(error.errno, error.strerror, str(target.parent))
    if error.errno not in FULL:
        return error
    try:
        free = f"{shutil.disk_usage(target.parent).free:,} bytes are free"
    except OSError:
        free = "how much is free is not known"
    wanted = "" if needed is None else f"{needed:,} bytes are needed and "
    return OSError(error.errno, f"{error.strerror} ({wanted}{free})", str(target))
