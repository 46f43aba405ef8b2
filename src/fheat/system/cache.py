"""Cache on disk of what compilers made, for the next process.

An entry is a file named by its kind and key. It begins with the hash of key and content, so that an entry which is
damaged, cut short or renamed counts as absent. An entry is written beside its place and renamed, so that two processes
may write it at once. The cache is a convenience: where it cannot be read or written, nothing is said and the work is
done again.

Triton keeps the GPU kernels that it builds in a folder below that of the cache, in its own form and by its own rules:
one file per step of a kernel, renamed into place, under the hash of source, compiler and GPU. fheat does not check
them.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fheat.system.errors import BadInput
from fheat.system.files import read_capped, write_file

VARIABLE: Final = "FHEAT_CACHE"
"""Environment variable with the folder of the cache; empty, there is none."""
KERNELS_VARIABLE: Final = "TRITON_CACHE_DIR"
"""Environment variable with the folder in which Triton keeps GPU kernels."""
LARGEST: Final = 2**30
"""Number of bytes of all entries beyond which those that were used longest ago are removed."""
LARGEST_ENTRY: Final = 2**29
_MARK: Final = b"fheat01\n"
_SUFFIX: Final = ".kept"
_DIGITS: Final = 40
"""Number of hexadecimal digits of a key that name its file; all of it is part of the hash."""


@dataclass(frozen=True)
class Entry:
    """One entry of the cache."""

    file: Path
    kind: str
    bytes: int
    used: float
    """When it was last read or written, in seconds since 1970."""


def cache_folder() -> Path | None:
    """Return the folder of the cache, which need not exist; None where the user wants none or has no home."""
    if (said := os.environ.get(VARIABLE)) is not None:
        return Path(said) if said else None
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "fheat"
    with contextlib.suppress(RuntimeError):
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fheat"
    return None


def read_cached(kind: str, key: str) -> bytes | None:
    """Return what was kept under a key; None where nothing was, or where it is damaged, in which case it is removed."""
    file = _file(kind, key)
    if file is None or not is_cached(kind, key):
        return None
    try:
        found = read_capped(file, LARGEST_ENTRY)
    except (OSError, BadInput):
        return None
    content = found[len(_MARK) + 32 :]
    intact = found.startswith(_head(key, content))
    with contextlib.suppress(OSError):
        if intact:
            os.utime(file)
        else:
            file.unlink()
    return content if intact else None


def is_cached(kind: str, key: str) -> bool:
    """Return whether something is kept under a key, without reading it: it may yet turn out to be damaged."""
    file = _file(kind, key)
    return file is not None and _is_ours(file.parent) and _is_ours(file)


def write_cached(kind: str, key: str, content: bytes) -> None:
    """Keep something under a key, and remove what was used longest ago where the cache grows too large."""
    file = _file(kind, key)
    if file is None or len(content) + len(_MARK) + 32 > LARGEST_ENTRY:
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(file.parent):
            return
        write_file(file, _head(key, content) + content)
        left = LARGEST
        for entry in sorted(cached(), key=lambda one: one.used, reverse=True):
            left -= entry.bytes
            if left < 0 and entry.file != file:
                entry.file.unlink(missing_ok=True)


def remove_cached(kind: str, key: str) -> None:
    """Keep no longer what was kept under a key."""
    if (file := _file(kind, key)) is not None:
        with contextlib.suppress(OSError):
            file.unlink()


def cached() -> list[Entry]:
    """Return the entries of the cache, sorted by kind and name."""
    folder = cache_folder()
    found = []
    for file in sorted(folder.glob(f"*{_SUFFIX}")) if folder is not None and _is_ours(folder) else []:
        with contextlib.suppress(OSError):
            facts = file.lstat()
            if stat.S_ISREG(facts.st_mode):
                found.append(Entry(file, file.name.rsplit("-", 1)[0], facts.st_size, facts.st_mtime))
    return found


def clear_cache() -> list[Entry]:
    """Remove the entries of the cache and nothing else, and return them."""
    removed = cached()
    for entry in removed:
        entry.file.unlink(missing_ok=True)
    return removed


def keep_kernels_here() -> None:
    """Let Triton keep GPU kernels below the folder of the cache, unless the environment names another place, or others
    could write there, or we cannot: Triton then has its own."""
    found = _kernel_folder()
    if found is None or KERNELS_VARIABLE in os.environ:
        return
    folder = found.absolute()  # other processes may start elsewhere
    with contextlib.suppress(OSError):  # of a place that we may not look into
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if _is_ours(there) and os.access(there, os.W_OK):  # Triton makes what is missing below
            os.environ[KERNELS_VARIABLE] = str(folder)


def kept_kernels() -> tuple[int, int]:
    """Return the number of GPU kernels below the folder of the cache, and the number of bytes of all their files."""
    folder = _kernel_folder()
    if folder is None or not folder.is_dir():
        return 0, 0
    count = total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a process that builds kernels renames its files
            total += file.stat().st_size if file.is_file() else 0
            count += file.suffix == ".cubin"
    return count, total


def clear_kernels() -> tuple[int, int]:
    """Remove the GPU kernels below the folder of the cache; return how many are gone, and their bytes."""
    (count, total), folder = kept_kernels(), _kernel_folder()
    if folder is not None and _is_ours(folder) and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    left, bytes_left = kept_kernels()
    return count - left, total - bytes_left


def _kernel_folder() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "triton"


def _file(kind: str, key: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"{kind}-{key[:_DIGITS]}{_SUFFIX}"


def _head(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{len(key)} {key}\n".encode())
    digest.update(content)
    return _MARK + digest.digest()


def _is_ours(path: Path) -> bool:
    """Return whether nobody else can have put something there: what is kept is run, not only read."""
    try:
        facts = path.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return facts.st_uid == os.getuid() and not facts.st_mode & stat.S_IWOTH
