"""Receiving files and reading them, in threads, so that nothing of it blocks the service.

What was sent is read by the confined readers of `fheat.io` and written again as voxels and affine alone.
"""

import asyncio
import contextlib
import math
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from fheat.io import read_volume, write_nifti
from fheat.io.volume import Volume
from fheat.studio.answers import Refused
from fheat.studio.archive import unpack_series
from fheat.studio.settings import Limits
from fheat.system.errors import BadInput
from fheat.system.files import open_regular

READERS: Final = 2
"""Files that are read at a time; each takes the memory of its voxels."""
MOST_UPLOADS: Final = 64
"""Bodies that are received at a time."""
VIEWED: Final = 256 * 2**20
"""Largest number of voxels that a browser can show."""
_WRITE_AT: Final = 2**20
"""Bytes that are collected before they are written."""
_PACKED_AT: Final = 2**18
_EXACT: Final = {"i8": np.int32, "u8": np.int32, "f16": np.float64}
"""Types that the stored copy cannot have, and what stands for them where the values fit."""
Result = TypeVar("Result")


class Files:
    """Receives bodies and reads files, a few at a time, in threads of its own: nothing of it blocks the service."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(READERS, "fheat-studio-read")
        self._receiving = 0

    def close(self) -> None:
        """Wait for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def receive(self, stream: AsyncIterator[bytes], target: Path) -> int:
        """Write a body to a new file and return its number of bytes, or raise `Refused`."""
        if self._receiving >= MOST_UPLOADS:
            raise Refused.busy(f"{MOST_UPLOADS} files are being received")
        self._receiving += 1
        try:
            return await _save(stream, target)
        finally:
            self._receiving -= 1

    async def read(self, name: str, source: Path, target: Path) -> Volume:
        """Read a file with the confined readers and write its voxels and affine to `target`, or raise `Refused`."""
        return await self.run(name, _read_clean, source, target, self._limits)

    @staticmethod
    async def remove(*files: Path) -> None:
        """Delete files that may exist; even this can take long on a busy disk."""
        for file in files:
            await asyncio.shield(asyncio.to_thread(file.unlink, missing_ok=True))

    @staticmethod
    def with_true_ending(sent: Path) -> Path:
        """Rename a .nii that is packed with gzip, which a client need not say, and return its path."""
        with open_regular(sent) as file:
            packed = file.read(2) == b"\x1f\x8b"
        return sent.rename(sent.with_name(f"{sent.name}.gz")) if packed else sent

    async def unpack(self, name: str, archive: Path, folder: Path) -> None:
        """Unpack the zipped series of a scan, or raise `Refused`."""
        most = {"files": self._limits.files, "size": self._limits.voxel_bytes}
        await self.run(name, lambda: unpack_series(archive, folder, **most))

    async def run(self, name: str, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do work with files in a thread; what it refuses becomes `Refused` under this name."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, *arguments)
        except BadInput as error:
            raise Refused.of(error, name) from None
        except MemoryError:
            raise Refused.busy("there is not enough memory to read it") from None


async def _save(stream: AsyncIterator[bytes], target: Path) -> int:
    """Write what comes in large parts, each in another thread; a slow disk then makes only this client wait."""
    written, waiting = 0, bytearray()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(await asyncio.to_thread(open, target, "xb"))
        async for part in stream:
            waiting += part
            if len(waiting) >= _WRITE_AT:
                written += await asyncio.to_thread(file.write, bytes(waiting))
                waiting.clear()
        written += await asyncio.to_thread(file.write, bytes(waiting))
    return written


def _read_clean(source: Path, target: Path, limits: Limits) -> Volume:
    """Read a file and write its voxels and affine; return an empty volume of the same shape and place."""
    volume = read_volume(source, limit=limits.voxel_bytes)
    if volume.data.size > limits.voxels:
        reason = f"has {volume.data.size:,} voxels, over the limit of {limits.voxels:,}"
        raise BadInput(source, reason, "send a smaller scan")
    volume = Volume(_storable(volume.data), volume.affine)
    write_nifti(volume, target)
    if target.name == "scan.nii" and math.prod(volume.data.shape[:3]) > VIEWED:  # labels are not looked at from there
        write_nifti(coarser(volume, VIEWED), target.with_name("view.nii"))
    return Volume(np.broadcast_to(np.zeros((), volume.data.dtype), volume.data.shape), volume.affine)


def _storable(data: Any) -> Any:
    """Return the voxels in a type that NIfTI has and that everything here takes."""
    other = _EXACT.get(data.dtype.str[1:])
    if other is None:
        return data
    if other is np.int32 and (data.min() < -(2**31) or data.max() >= 2**31):
        return data.astype(np.float32)
    return data.astype(other)


def coarser(volume: Volume, most: int) -> Volume:
    """Return every n-th voxel along each axis, with the least n that leaves at most so many; same place."""
    step = 1
    while math.prod(math.ceil(length / step) for length in volume.data.shape[:3]) > most:
        step += 1
    return Volume(volume.data[::step, ::step, ::step], volume.affine @ np.diag([step, step, step, 1.0]))


def packed_parts(file: Path) -> Iterator[bytes]:
    """Yield a file packed with gzip, for a browser on the same machine: quickly rather than small."""
    packer = zlib.compressobj(1, wbits=31)
    with open_regular(file) as content:
        while part := content.read(_PACKED_AT):
            yield packer.compress(part)
    yield packer.flush()
