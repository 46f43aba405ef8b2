"""The folder of a start of the service: private, removed at its end, and at the next start if it was killed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "fheat-studio-"
_LOCK: Final = "lock"


@contextmanager
def workplace(parent: Path | None = None) -> Iterator[Path]:
    """Provide a new folder that only this user can look into, and remove it at the end.

    Folders of services that were killed are removed first: their locks are free. Systems without such locks keep them.
    """
    base = Path(parent or tempfile.gettempdir())
    for folder in base.glob(f"{PREFIX}*"):
        _remove_abandoned(folder)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # with mode 0700
    try:
        with open(folder / _LOCK, "xb") as lock:
            _take(lock)
            for part in ("scans", "jobs", "tasks", "dataset"):
                (folder / part).mkdir(mode=0o700)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove the folder of a service of this user that has ended without doing so."""
    try:
        facts = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or not hasattr(os, "getuid") or facts.st_uid != os.getuid():
            return
        with open(folder / _LOCK, "r+b") as lock:  # a folder without one is just being made
            if _take(lock):
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return


def _take(lock: IO[bytes]) -> bool:
    """Take the lock of a file until it is closed; return whether it was free."""
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
