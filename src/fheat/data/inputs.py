"""The scans a path stands for: a file, a DICOM series, a folder of either, or a dataset."""

from pathlib import Path

from fheat.data.case import Case
from fheat.data.layouts import open_dataset
from fheat.data.layouts.common import by_channel, image_files, stem
from fheat.io.dicom import holds_dicom
from fheat.system.errors import BadInput


def scans_at(path: str | Path) -> tuple[Case, ...]:
    """Return the scans to segment, or raise `BadInput`.

    - a file: that scan;
    - a folder of DICOM files: one series;
    - a folder with such folders: every folder in it is a series, every NIfTI file a scan, also those that turn out to
      be damaged when they are read;
    - any other folder: the cases of its layout, see `fheat.data.layouts`; a folder of NIfTI files is the simplest.
    """
    place = Path(path)
    if place.is_dir():
        if holds_dicom(place):
            return (Case(place.resolve().name, (place,)),)
        folders = [entry for entry in sorted(place.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
        if any(holds_dicom(folder) for folder in folders):
            files = by_channel(image_files(place))
            series = {folder.name: (folder,) for folder in folders}
            return tuple(Case(name, paths) for name, paths in sorted((series | files).items()))
    elif place.is_file() and place.suffix != ".json":
        if place.suffix == ".h5":
            raise BadInput(place, "states no spacing", "give the folder with its list of cases, which implies one")
        return (Case(stem(place).removesuffix("_0000"), (place,)),)
    elif not place.exists():
        raise BadInput(place, "does not exist", "give a scan, a folder of scans or a dataset")
    cases = open_dataset(place).cases
    if not cases:
        raise BadInput(place, "holds no scan", "give a folder of scans")
    return cases
