"""Writing a folder so that a reader finds the old one or the new one, never half of one."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into a new folder beside `target`, flush it to disk, then put it in `target`'s place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new-{os.getpid()}")
    stale = target.with_name(f".{target.name}.old-{os.getpid()}")
    try:
        fresh.mkdir()
        for name, data in files.items():
            with open(fresh / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _flush_names(fresh)
        if target.exists():
            target.rename(stale)
        try:
            fresh.rename(target)
        except OSError:
            if stale.exists():
                stale.rename(target)
            raise
        _flush_names(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.exists():
            shutil.rmtree(stale, ignore_errors=True)


def _flush_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
