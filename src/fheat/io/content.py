"""The bytes of a file, plain or packed with gzip: as many as its header declares, and one more to see that it ends.

Packing is here too, for the formats that are written.
"""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from fheat.system.errors import BadInput
from fheat.system.files import open_regular

SIZE_LIMIT: Final = 8 * 2**30
"""Largest number of bytes of voxels, unless the caller gives another limit."""
COPY_AGAIN: Final = "copy it again from its source"
CHECK_WRITER: Final = "check how the file was written"
_STEP: Final = 2**20
"""Number of bytes that are unpacked at a time."""
_STEPS_OF_THE_REST: Final = 64
_GZIP: Final = b"\x1f\x8b"
"""Bytes with which gzip begins."""
_MOST_OF_A_BYTE: Final = 1032
"""Largest number of bytes that deflate can make of one byte: two bits stand for 258 equal bytes."""


class Content:
    """The rest of an open file, to be read from front to end.

    `most` is the largest number of bytes that can be left, known without unpacking: what a header declares is compared
    with it before anything of that size is allocated.
    """

    def __init__(self, path: Path, file: IO[bytes], *, packed: bool) -> None:
        left = os.fstat(file.fileno()).st_size - file.tell()
        self.path, self.packed = path, packed
        self._damage: BadInput | None = None
        self.most = _MOST_OF_A_BYTE * left if packed else left
        if packed:
            _check_start(path, file)
        self._stream: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]

    def take(self, count: int, what: str) -> bytearray:
        """Return the next `count` bytes, or raise `BadInput` that says what is cut off."""
        if count > self.most:
            raise BadInput(self.path, f"is cut off in {what}: it holds at most {self.most:,} bytes", COPY_AGAIN)
        taken = bytearray(count)
        if (held := self._fill(taken)) < count:
            raise BadInput(self.path, f"is cut off in {what}, after {held:,} of {count:,} bytes", COPY_AGAIN)
        self.most -= count
        return taken

    def voxels(self, count: int) -> bytearray:
        """Return the next `count` bytes, or raise `BadInput` unless the content ends right after them.

        At the end gzip compares its checksum and length.
        """
        if count > self.most:
            at_most = "at most " if self.packed else ""
            raise BadInput(
                self.path, f"declares {count:,} bytes of voxels and holds {at_most}{self.most:,}", COPY_AGAIN
            )
        voxels = bytearray(count)
        held = self._fill(voxels)
        if held < count or self._fill(bytearray(1)):
            found = f"{held:,}" if held < count else "more"
            raise BadInput(self.path, f"declares {count:,} bytes of voxels and holds {found}", COPY_AGAIN)
        return voxels

    def check_rest(self) -> None:
        """Raise `BadInput` where gzip finds damage in what is left, or in its first 64 MiB, none of which is kept.

        A flipped bit often shows in the header first; this tells it from a header that was written so.
        """
        passed = bytearray(_STEP)
        for _ in range(_STEPS_OF_THE_REST if self.packed else 0):
            if self._fill(passed) < _STEP:
                return

    def _fill(self, target: bytearray) -> int:
        """Read into `target` until it is full or the content ends; return the number of bytes read."""
        held = 0
        if self._damage is not None:  # reading on, gzip would find another damage behind the first one
            raise self._damage
        try:
            while part := self._stream.read(min(_STEP, len(target) - held)):
                target[held : held + len(part)] = part
                held += len(part)
        except (zlib.error, EOFError, gzip.BadGzipFile) as error:
            self._damage = BadInput(self.path, f"gzip stream is damaged ({_damage(error)})", COPY_AGAIN)
            raise self._damage from None
        return held


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; whatever goes wrong while it is read and parsed becomes a `BadInput`."""
    try:
        with open_regular(path) as file:
            yield file
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # parsers raise many kinds of errors on damaged headers
        if isinstance(error, OSError) and error.strerror is not None:
            raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(path, f"is damaged ({reason})", COPY_AGAIN) from None


def _damage(error: Exception) -> str:
    """Return what gzip says, but for bytes behind the end of a stream, which it quotes as if they were its first."""
    said = str(error)
    return f"other bytes than {_GZIP.hex(' ')} follow its end" if said.startswith("Not a gzipped file") else said


def _check_start(path: Path, file: IO[bytes]) -> None:
    """Raise `BadInput` where a gzip header begins otherwise, or has reserved bits, which the library passes over."""
    start = file.tell()
    begin = file.read(4)
    file.seek(start)
    if begin and begin[:2] != _GZIP[: len(begin)]:
        reason = f"gzip stream is damaged (it begins with the bytes {begin[:2].hex(' ')}, not with {_GZIP.hex(' ')})"
        raise BadInput(path, reason, f"{COPY_AGAIN}, or take .gz off its name if it is not packed")
    if len(begin) == 4 and begin[3] & 0xE0:
        raise BadInput(path, "gzip stream is damaged (its header has reserved flags)", COPY_AGAIN)


def packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts compressed with gzip, without a time stamp, so that equal volumes give equal files."""
    packer = zlib.compressobj(3, wbits=31)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()
