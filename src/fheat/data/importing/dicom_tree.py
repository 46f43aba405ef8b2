"""DICOM folders: which hold a series of images, which files are segmentations, and of which series.

Headers are read in Python, with a limit of bytes, until the first image of a folder; pixels are left alone.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fheat.data.layouts.common import ENDINGS
from fheat.io.dicom import one_line, read_header, refusing, require
from fheat.system.errors import BadInput
from fheat.system.files import open_regular

if TYPE_CHECKING:
    from pydicom import Dataset

FEWEST_SLICES: Final = 8
"""Number of slices below which a series is taken for a localiser."""
_LOOKED_AT: Final = 4
"""Number of files of a folder that are looked at to tell whether it holds DICOM."""
_MARK: Final = 132


@dataclass(frozen=True)
class DicomFolder:
    """A folder with DICOM files, as the header of its first image says; `segmentations` are the files that are SEG."""

    path: Path
    modality: str = ""
    series: str = ""
    """SeriesInstanceUID of the images; empty where there are none."""
    patient: str = ""
    slices: int = 0
    segmentations: tuple["Seg", ...] = ()


@dataclass(frozen=True)
class Seg:
    """A DICOM SEG: the series that it was drawn on, and the names of its segments by number."""

    path: Path
    series: str
    names: dict[int, str]


def look_into(folder: Path, files: list[str]) -> DicomFolder | None:
    """Return what the DICOM files of a folder are, or None if it has none.

    Raises `BadInput` where a header cannot be read. A folder of images is told by its first file; as segmentations and
    other objects lie alone or few together, files are looked at one by one until an image comes.
    """
    names = [name for name in files if not name.endswith(ENDINGS) and name.upper() != "DICOMDIR"]
    if not any(_is_dicom(folder / name) for name in names[:_LOOKED_AT]):
        return None
    require("pydicom", folder)
    segmentations, modality = [], ""
    for index, name in enumerate(names):
        if not _is_dicom(folder / name):
            continue
        header = read_header(folder / name)
        modality = one_line(header.get("Modality") or "unknown")
        if modality == "SEG":
            segmentations.append(_seg(folder / name, header))
        elif "PixelSpacing" in header or "ImagePositionPatient" in header:
            series, patient = (str(header.get(name) or "") for name in ("SeriesInstanceUID", "PatientID"))
            return DicomFolder(folder, modality, series, patient, len(names) - index, tuple(segmentations))
    return DicomFolder(folder, modality, segmentations=tuple(segmentations))


def _seg(path: Path, header: "Dataset") -> Seg:
    with refusing(path):
        referenced = header.get("ReferencedSeriesSequence") or []
        series = str(referenced[0].SeriesInstanceUID) if len(referenced) == 1 else ""
        segments = header.get("SegmentSequence") or []
        return Seg(path, series, {int(one.SegmentNumber): one_line(one.SegmentLabel) for one in segments})


def _is_dicom(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return os.path.getsize(path) > _MARK and file.read(_MARK)[-4:] == b"DICM"
    except (BadInput, OSError):
        return False
