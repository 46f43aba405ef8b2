"""Listing the scans that a path contains: a file, a DICOM series, a folder of either, or a dataset."""

from pathlib import Path

from fheat.data.case import Case
from fheat.data.layouts import open_dataset
from fheat.data.layouts.common import by_channel, image_files, stem
from fheat.io.dicom import holds_dicom
from fheat.system.errors import BadInput


def scans_at(path: str | Path) -> tuple[Case, ...]:
    """Return the scans to segment, or raise `BadInput`.

    - A file is one scan.
    - A folder of DICOM files is one series.
    - In a folder with such folders, every folder is a series and every image file a scan; damaged ones are listed too,
      and are refused when they are read.
    - Any other folder has the cases of its layout, see `fheat.data.layouts`; the simplest is a folder of NIfTI files.
    """
    source = Path(path)
    if source.is_dir():
        if holds_dicom(source):
            return (Case(source.resolve().name, (source,)),)
        folders = [entry for entry in sorted(source.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
        if any(holds_dicom(folder) for folder in folders):
            files = by_channel(image_files(source))
            series = {folder.name: (folder,) for folder in folders}
            return tuple(Case(name, paths) for name, paths in sorted((series | files).items()))
    elif source.is_file() and source.suffix != ".json":
        if source.suffix == ".h5":
            raise BadInput(source, "states no spacing", "give the folder with its list of cases, which implies one")
        return (Case(stem(source).removesuffix("_0000"), (source,)),)
    elif not source.exists():
        raise BadInput(source, "does not exist", "give a scan, a folder of scans or a dataset")
    cases = open_dataset(source).cases
    if not cases:
        raise BadInput(source, "holds no scan", "give a folder of scans")
    return cases
