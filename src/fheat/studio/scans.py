"""The scans that the service holds: read once by the confined readers, kept as voxels and affine alone.

A scan lies in a folder under an identifier that the service makes. The file that was sent is deleted as soon as it has
been read: its header may name a patient, the copy cannot. Only a DICOM series is kept beside the copy, because a DICOM
SEG must name the patient of its series.
"""

import asyncio
import contextlib
import math
import secrets
import shutil
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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

Result = TypeVar("Result")
KINDS: Final = {".nii": "nifti", ".nii.gz": "nifti", ".nrrd": "nrrd", ".zip": "dicom"}
"""Kind of a scan by the ending of its name."""
READERS: Final = 2
"""Files that are read at a time; each takes the memory of its voxels."""
MOST_UPLOADS: Final = 64
"""Bodies that are received at a time."""
LONGEST_NAME: Final = 200
VIEWED: Final = 256 * 2**20
"""Largest number of voxels that a browser can show."""
_WRITE_AT: Final = 2**20
"""Bytes that are collected before they are written."""
_PACKED_AT: Final = 2**18
_EXACT: Final = {"i8": np.int32, "u8": np.int32, "f16": np.float64}
"""Types that the stored copy cannot have, and what stands for them where the values fit."""


@dataclass
class Scan:
    """What is known of a scan; `folder` holds `scan.nii` and for DICOM `series`."""

    id: str
    name: str
    kind: str
    folder: Path
    shape: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()
    orientation: str = ""
    channels: int = 1
    size: int = 0
    """Bytes on disk."""
    used: float = field(default_factory=time.monotonic)
    """When it was last used, by the monotonic clock."""

    @property
    def file(self) -> Path:
        """The copy of its voxels and affine."""
        return self.folder / "scan.nii"

    @property
    def series(self) -> Path | None:
        """The folder of its DICOM files."""
        return self.folder / "series" if self.kind == "dicom" else None

    def to_json(self) -> dict[str, Any]:
        """Return what clients get to know."""
        return {
            "scan": self.id,
            "name": self.name,
            "shape": self.shape,
            "spacing": self.spacing,
            "orientation": self.orientation,
            "channels": self.channels,
            "kind": self.kind,
        }


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


class Scans:
    """The scans by identifier, each deleted when nobody has used it for a while."""

    def __init__(self, folder: Path, files: Files, limits: Limits) -> None:
        self._folder, self._files, self._limits = folder, files, limits
        self._scans: dict[str, Scan] = {}

    def __len__(self) -> int:
        return len(self._scans)

    def has(self, key: str) -> bool:
        """Return whether a scan exists."""
        return key in self._scans

    def get(self, key: str) -> Scan:
        """Return a scan, which counts as use, or raise `Refused`."""
        scan = self._scans.get(key)
        if scan is None:
            raise Refused(404, "there is no such scan", "send it again: scans are deleted after a while")
        scan.used = time.monotonic()
        return scan

    async def add(self, stream: AsyncIterator[bytes], name: str) -> Scan:
        """Receive and read a scan, or raise `Refused`; what is refused leaves nothing behind."""
        name = checked_name(name)
        ending = ending_of(name)
        held = sum(scan.size for scan in self._scans.values())
        if held > self._limits.kept or len(self._scans) >= self._limits.scans:
            raise Refused.busy(f"the service holds {len(self._scans)} scans, and has no room for more")
        scan = Scan(secrets.token_hex(6), name, KINDS[ending], self._folder)
        scan.folder = self._folder / scan.id
        scan.folder.mkdir(mode=0o700)
        try:
            await self._fill(scan, stream, scan.folder / f"sent{ending}")
        except BaseException:
            shutil.rmtree(scan.folder, ignore_errors=True)
            raise
        scan.used = time.monotonic()
        self._scans[scan.id] = scan
        return scan

    async def _fill(self, scan: Scan, stream: AsyncIterator[bytes], sent: Path) -> None:
        if await self._files.receive(stream, sent) == 0:
            raise Refused(400, f"{scan.name}: the file is empty", "send the content of the file as the body")
        source = sent
        if scan.series is not None:
            await self._files.unpack(scan.name, sent, scan.series)
            source = scan.series
        volume = await self._files.read(scan.name, source, scan.file)
        sent.unlink()
        scan.shape, scan.spacing = volume.data.shape[:3], volume.spacing
        scan.channels = 1 if volume.data.ndim == 3 else volume.data.shape[3]
        scan.orientation = volume.orientation
        scan.size = sum(file.stat().st_size for file in scan.folder.rglob("*") if file.is_file())

    async def delete(self, key: str) -> None:
        """Delete a scan and its files."""
        scan = self._scans.pop(key, None)
        if scan is not None:
            await asyncio.to_thread(shutil.rmtree, scan.folder, ignore_errors=True)

    async def expire(self, now: float, in_use: set[str]) -> None:
        """Delete the scans that nobody has used for `Limits.keep` seconds, except those of jobs to be done."""
        for scan in list(self._scans.values()):
            if now - scan.used > self._limits.keep and scan.id not in in_use:
                await self.delete(scan.id)


def checked_name(name: str) -> str:
    """Return a file name that was sent, or raise `Refused` for a path and for what no file is called."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or set(name) & set("/\\:") or name.startswith("."):
        reason = f"the name is no file name of up to {LONGEST_NAME} characters"
        raise Refused(400, reason, "send the name of the file without its folder")
    return name


def ending_of(name: str) -> str:
    """Return the ending by which a file is read, or raise `Refused`."""
    found = next((ending for ending in (".nii.gz", ".nii", ".nrrd", ".zip") if name.lower().endswith(ending)), None)
    if found is None:
        remedy = "send .nii, .nii.gz, .nrrd, or a .zip of the files of one DICOM series"
        raise Refused(415, "the name has no ending of a scan", remedy)
    return found


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
    if math.prod(volume.data.shape[:3]) > VIEWED:
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
