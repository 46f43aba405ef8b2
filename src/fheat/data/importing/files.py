"""The files of a folder that may be scans or labels, each with what its path says, and the facts of DICOM folders."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from fheat.data.importing.names import Named, named, pattern_key
from fheat.io import list_series
from fheat.io.dicom import holds_dicom
from fheat.io.dicom_series import SeriesFacts
from fheat.system.errors import BadInput

ENDINGS: Final = (".nii.gz", ".nii", ".nrrd")
"""Endings of scans and labels; h5 files have layouts of their own."""
FEWEST_SLICES: Final = 8
"""Number of slices below which a series is taken for a localiser."""
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
    series: dict[Path, SeriesFacts] = field(default_factory=dict)
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
        _add_dicom(Path(place), files, add)
    return files


def _add_dicom(place: Path, files: Files, add: Callable[..., None]) -> None:
    """Add the series of a folder as a scan, and its segmentations as labels."""
    try:
        found = list_series(place) if holds_dicom(place) else ()
    except BadInput as error:
        files.left_out.append(LeftOut(error.path, error.reason))
        return
    for seg in (seg for one in found for seg in one.segmentations):
        path = place / seg.file
        add(path, is_label=True)
        files.drawn_on[path] = seg.series
        for number, name in seg.names:
            if files.segments.setdefault(number, name) != name:
                files.doubts[path] = f"segment {number} is {name}, elsewhere {files.segments[number]}:"
    scans = [one for one in found if not one.damaged and one.not_a_scan is None]
    others = [one for one in found if one not in scans and not one.segmentations]
    for one in others:
        where, reason = (place / one.files[0], one.fault) if one.damaged else (place, f"is {one.not_a_scan}")
        files.left_out.append(LeftOut(where, reason))
    if len(scans) == 1 and len(scans[0].files) >= FEWEST_SLICES:
        files.series[place] = scans[0]
        add(place, is_label=False)
    elif len(scans) == 1:
        files.left_out.append(LeftOut(place, f"is a series of {len(scans[0].files)} slices, perhaps a localiser"))
    elif scans:
        files.left_out.append(LeftOut(place, f"holds {len(scans)} series of images, and a scan is a folder of one"))
