"""Writing a folder so that what fails or is interrupted leaves the old one in place."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into a new folder beside `target`, flush it to disk, then put it in `target`'s place.

    An existing target steps aside for the instant between two renames and comes back if the second does not happen; a
    machine that dies right there leaves it complete under a hidden name beside its place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    bench = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh, stale = bench / "new", bench / "old"
    try:
        fresh.mkdir()
        for name, data in files.items():
            with open(fresh / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _flush_names(fresh)
        try:
            if target.exists():
                target.rename(stale)
            fresh.rename(target)
        except BaseException:
            if stale.exists() and not target.exists():
                stale.rename(target)
            raise
        _flush_names(target.parent)
    finally:
        if target.exists() or not stale.exists():
            shutil.rmtree(bench, ignore_errors=True)


def _flush_names(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and names need no flush
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
