"""Listing the scans that a path contains: a file, DICOM series at any depth, a folder of scans, or a dataset."""

from dataclasses import replace
from pathlib import Path

from fheat.data.case import Case
from fheat.data.dicom_tree import FoundScans, dicom_tree, is_dicom_tree
from fheat.data.layouts import open_dataset
from fheat.data.layouts.common import by_channel, image_files, stem
from fheat.io.dicom import holds_dicom
from fheat.system.errors import BadInput
from fheat.system.patterns import files_by_id


def scans_at(path: str | Path) -> tuple[Case, ...]:
    """Return the scans to segment, or raise `BadInput`; see `find_scans`."""
    return find_scans(path).cases


def find_scans(path: str | Path, series: str | None = None, pattern: str | None = None) -> FoundScans:
    """Return the scans to segment, and what is left out with the reason, or raise `BadInput`.

    - A file is one scan.
    - In a folder with DICOM files, in itself or in the folders in it, every series at any depth is a scan, see
      `fheat.data.dicom_tree`, and so is every image file in the folder itself. Folders in it without any series are
      listed too, and are refused when they are read.
    - Any other folder has the cases of its layout, see `fheat.data.layouts`; the simplest is a folder of NIfTI files.
    - A folder without a known layout is searched for DICOM series at any depth.

    With `series`, the UID or the description of DICOM series, only those are scans; `ValueError` without any DICOM.
    With `pattern`, such as `{id}_LGE.nii.gz`, the files below the folder that fit it are the scans, and no others; see
    `fheat.system.patterns`.
    """
    source = Path(path)
    if pattern is not None:
        _check_unnamed(series)
        files = files_by_id(source, pattern)
        return FoundScans(tuple(Case(name, (one,)) for name, held in files.items() for one in held))
    if source.is_dir():
        folders = [entry for entry in sorted(source.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
        if any(holds_dicom(folder) for folder in (source, *folders)):
            return _tree(source, folders, series)
    elif source.is_file() and source.suffix != ".json":
        _check_unnamed(series)
        if source.suffix == ".h5":
            raise BadInput(source, "states no spacing", "give the folder with its list of cases, which implies one")
        if source.suffix.lower() == ".dcm":
            raise BadInput(source, "is one DICOM file, not a series", "give the folder that holds the series")
        return FoundScans((Case(stem(source).removesuffix("_0000"), (source,)),))
    elif not source.exists():
        raise BadInput(source, "does not exist", "give a scan, a folder of scans or a dataset")
    try:
        cases = open_dataset(source).cases
    except BadInput:
        if source.is_dir() and is_dicom_tree(source):
            return _not_empty(source, dicom_tree(source, series))
        raise
    _check_unnamed(series)
    if not cases:
        raise BadInput(source, "holds no scan", "give a folder of scans")
    return FoundScans(cases)


def _tree(source: Path, folders: list[Path], series: str | None) -> FoundScans:
    """Return the series below a folder and, unless series are named, its image files and folders without any series."""
    found = dicom_tree(source, series)
    if series is not None:
        return _not_empty(source, found)
    held = [case.images[0] for case in found.cases]
    files = {name: Case(name, images) for name, images in by_channel(image_files(source)).items()}
    empty = {
        folder.name: Case(folder.name, (folder,))
        for folder in folders
        if not any(folder == place or folder in place.parents for place in held) and not is_dicom_tree(folder)
    }
    cases = (*found.cases, *(files | empty).values())
    return _not_empty(source, replace(found, cases=tuple(sorted(cases, key=lambda case: case.id))))


def _not_empty(source: Path, found: FoundScans) -> FoundScans:
    if not found.cases:
        others = "; ".join(sorted(set(found.skipped.values())))
        raise BadInput(source, f"holds no series of images ({others})", "give a folder with a scan")
    return found


def _check_unnamed(series: str | None) -> None:
    if series is not None:
        raise ValueError("a series can be chosen among DICOM files: leave out --series")
