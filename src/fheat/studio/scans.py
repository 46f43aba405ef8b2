"""The scans that the service holds: read once by the confined readers, kept as voxels and affine alone.

A scan lies in a folder under an identifier that the service makes. The file that was sent is deleted as soon as it has
been read: its header may name a patient, the copy cannot. Only a DICOM series is kept beside the copy, because a DICOM
SEG must name the patient of its series.
"""

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fheat.studio.answers import Refused
from fheat.studio.reading import Files
from fheat.studio.settings import Limits

KINDS: Final = {".nii": "nifti", ".nii.gz": "nifti", ".nrrd": "nrrd", ".zip": "dicom"}
"""Kind of a scan by the ending of its name."""
LONGEST_NAME: Final = 200


@dataclass
class Scan:
    """A scan that the service keeps, and its facts; `folder` holds `scan.nii` and for DICOM `series`."""

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
        await asyncio.to_thread(scan.folder.mkdir, 0o700)
        try:
            await self._fill(scan, stream, scan.folder / f"sent{ending}")
        except BaseException:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, scan.folder, ignore_errors=True))
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
        scan.size = await asyncio.to_thread(_remove_sent, sent)
        scan.shape, scan.spacing = volume.data.shape[:3], volume.spacing
        scan.channels = 1 if volume.data.ndim == 3 else volume.data.shape[3]
        scan.orientation = volume.orientation

    async def delete(self, key: str) -> None:
        """Delete a scan and its files."""
        scan = self._scans.pop(key, None)
        if scan is not None:
            await asyncio.to_thread(shutil.rmtree, scan.folder, ignore_errors=True)

    async def expire(self, now: float, in_use: set[str]) -> None:
        """Delete the scans that nobody has used for `Limits.keep` seconds, except those of jobs that are still kept."""
        for scan in list(self._scans.values()):
            if now - scan.used > self._limits.keep and scan.id not in in_use:
                await self.delete(scan.id)


def _remove_sent(sent: Path) -> int:
    """Delete the file that was sent, and return the bytes of what is left beside it."""
    sent.unlink()
    return sum(file.stat().st_size for file in sent.parent.rglob("*") if file.is_file())


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
