"""The scans a path stands for: a file, a DICOM series, a folder of either, or a dataset."""

from pathlib import Path

from fheat.data.case import Case
from fheat.data.layouts import open_dataset
from fheat.data.layouts.common import stem
from fheat.errors import BadInput


def scans_at(path: str | Path) -> tuple[Case, ...]:
    """Return the scans to segment, or raise `BadInput`.

    - a file: that scan;
    - a folder of DICOM files: one series; a folder of such folders: one scan each;
    - any other folder: the cases of its layout, see `fheat.data.layouts`; a folder of NIfTI files is the simplest.
    """
    place = Path(path)
    if place.is_dir():
        if _holds_dicom(place):
            return (Case(place.resolve().name, (place,)),)
        series = [folder for folder in sorted(place.iterdir()) if folder.is_dir() and _holds_dicom(folder)]
        if series:
            return tuple(Case(folder.name, (folder,)) for folder in series)
    elif place.is_file() and place.suffix != ".json":
        return (Case(stem(place).removesuffix("_0000").removesuffix(".nrrd"), (place,)),)
    cases = open_dataset(place).cases
    if not cases:
        raise BadInput(place, "holds no scan", "give a folder of scans")
    return cases


def _holds_dicom(folder: Path) -> bool:
    return any(_is_dicom(file) for file in folder.iterdir() if file.is_file())


def _is_dicom(file: Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(132)[128:] == b"DICM"
