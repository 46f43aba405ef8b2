"""Unpacking a zipped DICOM series without believing the archive.

Nothing in the archive decides where a file goes: files are numbered. Its directory is looked at before it is read,
as a small file can list millions of entries; links, encrypted entries, and names that lead elsewhere are refused, and
bytes are counted while they are unpacked, whatever the entries declare.
"""

import os
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Final

from fheat.io.content import COPY_AGAIN
from fheat.system.errors import BadInput
from fheat.system.files import open_regular

_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_LOCATOR: Final = b"PK\x06\x07"
"""Begin of the record that says that an archive has 64-bit fields."""
_LOCATOR_BYTES: Final = 20
_DIRECTORY_ENTRY: Final = 1024
"""Largest mean number of bytes of an entry of the directory."""
_STEP: Final = 2**18
_MARK: Final = slice(128, 132)
"""Place of the DICM mark in a file."""
_ENCRYPTED: Final = 0x1
_ZIP_AGAIN: Final = "zip the folder of the series again"


def unpack_series(archive: Path, folder: Path, *, files: int, size: int) -> int:
    """Write the DICOM files of a zip archive to a new folder as 00000.dcm, 00001.dcm, ...; return their number.

    Args:
        archive: the zip file; folders in it are ignored, and so are files without the DICM mark.
        folder: folder to create.
        files: largest number of entries.
        size: largest number of bytes of all files together, unpacked.
    """
    folder.mkdir(mode=0o700)
    with open_regular(archive) as file:
        _check_end(archive, file, files)
        try:
            with zipfile.ZipFile(file) as opened:
                listed = opened.infolist()  # of which the record at the end may declare fewer
                if len(listed) > files:
                    reason = f"lists {len(listed):,} files, over the limit of {files:,}"
                    raise BadInput(archive, reason, "zip one series")
                entries = [entry for entry in listed if not _is_ignored(archive, entry)]
                declared = sum(entry.file_size for entry in entries)
                if declared > size:
                    raise BadInput(archive, f"declares {declared:,} bytes, over the limit of {size:,}", _ZIP_AGAIN)
                count, left = 0, size
                for entry in entries:
                    with opened.open(entry) as content:
                        written = _write(archive, content, folder / f"{count:05d}.dcm", left)
                    left -= written
                    count += written > 0
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeError) as error:
            raise BadInput(archive, f"is no sound zip archive ({type(error).__name__})", COPY_AGAIN) from None
    if count == 0:
        raise BadInput(archive, "holds no DICOM files", "zip the folder of one series")
    return count


def _check_end(archive: Path, file: IO[bytes], files: int) -> None:
    """Raise `BadInput` unless the record at the very end declares a directory of a bearable size."""
    length = os.fstat(file.fileno()).st_size
    file.seek(max(0, length - _END_BYTES - _LOCATOR_BYTES))
    tail = file.read(_END_BYTES + _LOCATOR_BYTES)
    end = tail[-_END_BYTES:]
    if len(end) < _END_BYTES or end[:4] != _END or end[-2:] != b"\0\0":
        raise BadInput(archive, "is no zip archive, or one with a comment", _ZIP_AGAIN)
    if tail[:4] == _LOCATOR and len(tail) == _END_BYTES + _LOCATOR_BYTES:
        raise BadInput(archive, "is a zip archive with 64-bit fields", "zip the slices of one series")
    count, directory = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    if count > files or directory > files * _DIRECTORY_ENTRY:
        raise BadInput(archive, f"lists {count:,} files or more, over the limit of {files:,}", "zip one series")
    file.seek(0)


def _is_ignored(archive: Path, entry: zipfile.ZipInfo) -> bool:
    """Return whether an entry is no file of a series, or raise `BadInput` for one that no such archive has."""
    name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or ".." in parts or ":" in name or not name.isprintable():
        raise BadInput(archive, "holds a name that leads out of the archive", _ZIP_AGAIN)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadInput(archive, "holds a link or a device", "zip the files themselves")
    if entry.flag_bits & _ENCRYPTED:
        raise BadInput(archive, "is encrypted", "zip it without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(archive, f"is packed with method {entry.compress_type}", "zip it with deflate")
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return entry.is_dir() or hidden or (bool(parts) and parts[-1].upper() == "DICOMDIR")


def _write(archive: Path, content: IO[bytes], target: Path, left: int) -> int:
    """Write a file and return its number of bytes; 0, and no file, if it has no DICM mark."""
    part = content.read(_STEP)
    if part[_MARK] != b"DICM":
        return 0
    written = 0
    with open(target, "xb") as file:
        while part:
            written += len(part)
            if written > left:
                raise BadInput(archive, "unpacks to more bytes than the limit", _ZIP_AGAIN)
            file.write(part)
            part = content.read(_STEP)
    return written
