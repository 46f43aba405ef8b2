"""The files of a folder that may be scans or labels, each with what its path says, and the facts of DICOM folders."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from fheat.data.importing.dicom_tree import FEWEST_SLICES, DicomFolder, look_into
from fheat.data.importing.names import Named, named, pattern_key
from fheat.system.errors import BadInput

ENDINGS: Final = (".nii.gz", ".nii", ".nrrd")
"""Endings of scans and labels; h5 files have layouts of their own."""
MOST_FILES: Final = 200_000
"""Largest number of files of a folder that is imported."""


@dataclass(frozen=True)
class LeftOut:
    """A file or a folder that is not used, and why."""

    path: Path
    reason: str


@dataclass
class Files:
    """The files of a folder with what their paths say, and the facts of its DICOM folders."""

    images: list[Named] = field(default_factory=list)
    labels: list[Named] = field(default_factory=list)
    series: dict[Path, DicomFolder] = field(default_factory=dict)
    drawn_on: dict[Path, str] = field(default_factory=dict)
    """SeriesInstanceUID of the series of each DICOM SEG."""
    segments: dict[int, str] = field(default_factory=dict)
    """Names of the segments of DICOM SEGs by number."""
    doubts: dict[Path, str] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)


def list_files(folder: Path, images: str | None, labels: str | None) -> Files:
    """Return the scans and labels in a folder and in those below it; see `fheat.data.importing.pairs.guess`."""
    files, count = Files(), 0
    by_stars = bool(images and labels and "*" in images and "*" in labels)

    def add(path: Path, *, is_label: bool | None = None) -> None:
        relative = PurePosixPath(path.relative_to(folder).as_posix())
        keys = [None if pattern is None else pattern_key(pattern, relative) for pattern in (images, labels)]
        if is_label is None and keys[1] is not None:
            is_label = True
        if is_label is None and (images is not None or labels is not None):
            is_label = False if keys[0] is not None else None
        said = named(path, relative, is_label=is_label, key=keys[bool(is_label)] if by_stars else None)
        if (images if not said.is_label else labels) is None or keys[said.is_label] is not None:
            (files.labels if said.is_label else files.images).append(said)

    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        visible = sorted(name for name in names if not name.startswith("."))
        count += len(visible)
        if count > MOST_FILES:
            raise BadInput(folder, f"holds over {MOST_FILES:,} files", "import a folder below it")
        for name in visible:
            if name.endswith(ENDINGS):
                add(Path(place) / name)
        _add_dicom(Path(place), visible, files, add)
    return files


def _add_dicom(place: Path, names: list[str], files: Files, add: Callable[..., None]) -> None:
    """Add the series of a folder as a scan, and its segmentations as labels."""
    try:
        seen = look_into(place, names)
    except BadInput as error:
        files.left_out.append(LeftOut(error.path, error.reason))
        return
    if seen is None:
        return
    for seg in seen.segmentations:
        add(seg.path, is_label=True)
        files.drawn_on[seg.path] = seg.series
        for number, name in seg.names.items():
            if files.segments.setdefault(number, name) != name:
                files.doubts[seg.path] = f"segment {number} is {name}, elsewhere {files.segments[number]}:"
    if seen.series and seen.slices >= FEWEST_SLICES:
        files.series[place] = seen
        add(place, is_label=False)
    elif seen.series:
        files.left_out.append(LeftOut(place, f"is a series of {seen.slices} slices, perhaps a localiser"))
    elif not seen.segmentations:
        files.left_out.append(LeftOut(place, f"holds DICOM of the kind {seen.modality}, no image"))
