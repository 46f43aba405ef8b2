"""Writing so that what fails or is interrupted leaves the old file or folder in place; what cannot be is said first."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from fheat.system.errors import BadInput


def check_folder(folder: Path) -> None:
    """Raise `BadInput` where no folder can be, because it or one above it is a file."""
    found = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if found.exists() and not found.is_dir():
        raise BadInput(found, "is a file", "give a folder to write to")


def check_file(target: Path) -> None:
    """Raise `BadInput` where no file can be, because a folder is there, or a file above it."""
    if target.is_dir():
        raise BadInput(target, "is a folder", "give a file to write to")
    check_folder(target.parent)


def check_new_file(folder: Path, name: str) -> None:
    """Raise `BadInput` where no folder can be, or where it already holds a file of this name."""
    check_folder(folder)
    if (folder / name).exists():
        raise BadInput(folder / name, "exists already", "choose another folder or remove it")


def write_file(target: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file beside `target`, whole or in parts, flush it to disk, then put it in `target`'s place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.parent / f".{target.name}.{secrets.token_hex(8)}"  # mkstemp would hide it from other users
    try:
        with open(fresh, "xb") as file:
            _write_through(file, [data] if isinstance(data, bytes) else data)
        fresh.replace(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    flush_names(target.parent)


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
                _write_through(file, [data])
        flush_names(fresh)
        try:
            if target.exists():
                target.rename(stale)
            fresh.rename(target)
        except BaseException:
            if stale.exists() and not target.exists():
                stale.rename(target)
            raise
        flush_names(target.parent)
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
