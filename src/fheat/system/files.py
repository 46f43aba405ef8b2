"""Opening files and writing them, both so that nothing surprising happens.

Only regular files are opened for reading, and only as much of them is read as their kind may have: a named pipe would
block, and /dev/zero has no end. Writing that fails or is interrupted leaves the old file or folder in place; what
cannot be written is said first.
"""

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Final

from fheat.system.errors import BadInput, NotWritable, located, unreadable

TEXT_LIMIT: Final = 4 * 2**20
"""Largest number of bytes of a text that people write, such as settings or a model card."""
TABLE_LIMIT: Final = 64 * 2**20
"""Largest number of bytes of a description or a result that lists cases."""
LOG_LIMIT: Final = 2**30
"""Largest number of bytes of the log of a run."""
WEIGHTS_LIMIT: Final = 4 * 2**30
"""Largest number of bytes of the weights of a network, or of the state of a run."""
_SPECIAL: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Names of what a path can be instead of a regular file, by its type in `stat`."""


def open_regular(path: str | Path, limit: int | None = None) -> BufferedReader:
    """Open a regular file of at most `limit` bytes, or raise `BadInput` for anything else, at once; links are followed.

    A file that is missing raises `OSError`, as `open` does; one that may not be read raises `NotReadable`.
    """
    try:
        _check_regular(path, os.stat(path).st_mode)  # before opening: to open some devices is to use them
        # It may have become another file since. O_NONBLOCK: a named pipe without a writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except PermissionError as error:
        raise unreadable(path, error) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise BadInput(path, "is a symbolic link that leads back to itself", "give the file itself") from None
    try:
        facts = os.fstat(descriptor)
        _check_regular(path, facts.st_mode)
        if limit is not None and facts.st_size > limit:
            reason = f"has {facts.st_size:,} bytes, over the limit of {limit:,}"
            raise BadInput(path, reason, "check that it is the right file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_capped(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file, or raise `BadInput` if it is anything else or has over `limit` bytes."""
    with open_regular(path, limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def _check_regular(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _SPECIAL.get(stat.S_IFMT(mode), "no file")
        raise BadInput(path, f"is {kind}", "give the file in it" if stat.S_ISDIR(mode) else "give a regular file")


def check_folder(folder: Path, *, writable: bool = True) -> None:
    """Raise `BadInput` where no folder can be, because it or one above it is a file.

    With `writable`, raise `NotWritable` where nothing may be written to it, or to the one in which it would be
    made: that is told before the work, and not after it.
    """
    try:
        found = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    except PermissionError as error:  # above it is a folder that we may not look into
        if not writable:
            raise
        raise NotWritable(error.errno, error.strerror, str(folder)) from None
    if found.exists() and not found.is_dir():
        raise BadInput(found, "is a file", "give a folder to write to")
    if writable and found.exists() and not os.access(found, os.W_OK | os.X_OK):
        raise NotWritable(errno.EACCES, os.strerror(errno.EACCES), str(found))


def check_file(target: Path) -> None:
    """Raise `BadInput` where no file can be, because a folder is there, or a file above it; see `check_folder`."""
    check_folder(target.parent)
    if target.is_dir():
        raise BadInput(target, "is a folder", "give a file to write to")


def check_new_file(folder: Path, name: str) -> None:
    """Raise `BadInput` where no folder can be, see `check_folder`, or where it already holds a file of this name."""
    check_folder(folder)
    if (folder / name).exists():
        raise BadInput(folder / name, "exists already", "choose another folder or remove it")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it where they are missing, or raise `NotWritable` that has the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise NotWritable(error.errno, error.strerror, str(folder)) from None


def write_file(target: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file beside `target`, whole or in parts, flush it to disk, then put it in `target`'s place."""
    make_folder(target.parent)
    fresh = target.parent / f".{target.name}.{secrets.token_hex(8)}"  # mkstemp would hide it from other users
    try:
        with open(fresh, "xb") as file:
            _write_through(file, [data] if isinstance(data, bytes) else data)
        fresh.replace(target)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise located(error, target, len(data) if isinstance(data, bytes) else None) from None
        raise
    flush_names(target.parent)


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into a new folder beside `target`, flush it to disk, then put it in `target`'s place.

    A name may have folders in it, such as `docs/README.md`.

    An existing target steps aside for the instant between two renames and comes back if the second does not happen; a
    machine that dies right there leaves it complete under a hidden name beside its place.
    """
    make_folder(target.parent)
    try:
        bench = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise located(error, target, sum(map(len, files.values()))) from None
    fresh, stale = bench / "new", bench / "old"
    try:
        fresh.mkdir()
        for name, data in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            with open(fresh / name, "wb") as file:
                _write_through(file, [data])
        for folder in {fresh, *((fresh / name).parent for name in files)}:
            flush_names(folder)
        try:
            if target.exists():
                target.rename(stale)
            fresh.rename(target)
        except BaseException:
            if stale.exists() and not target.exists():
                stale.rename(target)
            raise
        flush_names(target.parent)
    except OSError as error:
        raise located(error, target, sum(map(len, files.values()))) from None
    finally:
        if target.exists() or not stale.exists():
            shutil.rmtree(bench, ignore_errors=True)


def _write_through(file: IO[bytes], parts: Iterable[bytes]) -> None:
    for part in parts:
        file.write(part)
    file.flush()
    os.fsync(file.fileno())


def flush_names(folder: Path) -> None:
    """Bring to the disk which names a folder holds."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and names need no flush
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
