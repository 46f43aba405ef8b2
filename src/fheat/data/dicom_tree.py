"""The DICOM series below a folder, however deep: patients, studies and series, or everything in one heap.

Files belong together if they state the same SeriesInstanceUID, wherever they lie. Series that are no scans (structures,
segmentations, reports, localisers, screenshots) are left out with the reason.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fheat.data.case import Case
from fheat.io import list_series
from fheat.io.dicom import holds_dicom
from fheat.io.dicom_series import SeriesFacts
from fheat.system.errors import BadInput

_DEEPEST: Final = 16
"""Number of folders within each other that are looked into."""
_MOST_SHOWN: Final = 6
"""Number of series that a refusal names."""


@dataclass(frozen=True)
class FoundScans:
    """The scans that a path holds, and what else was found there, with the reason why it is none of them."""

    cases: tuple[Case, ...]
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Series:
    """A series, the folder that holds all of it, and the folders that hold its files."""

    facts: SeriesFacts
    folder: Path
    folders: tuple[Path, ...]
    files: tuple[Path, ...]


def dicom_tree(root: Path, wanted: str | None = None) -> FoundScans:
    """Return the series below a folder, sorted by name; raise `BadInput` if the wanted one is not there.

    Args:
        root: the folder; hidden folders below it are not looked into.
        wanted: UID or description of the series to take; all scans if not given.

    A scan is named after its folders below `root`, joined by `_`, and by the number of its series where a folder holds
    several: `patient1_study2_series3`. A file that cannot be read might be a slice of any series in its folder. The
    folder is then listed as one scan, which is refused when it is read, and what others hold of its series is left out.
    """
    found, broken = _series(root)
    names = _names(root, found)
    alone = Counter(folder for one in found for folder in one.folders)
    cases, skipped = [], {}
    for one, name in zip(found, names, strict=True):
        reason = one.facts.not_a_scan
        lost = [folder for folder in one.folders if folder in broken]
        if wanted is not None:
            if not one.facts.named(wanted):
                continue
            reason = reason if "Image Storage" not in one.facts.kind else None  # who names it means it
        if lost:  # refused with its folder, below; what lies elsewhere is a part of it
            if len(one.folders) > 1 or wanted is not None:
                skipped[name] = f"files of it may be among those in {lost[0]} that cannot be read"
        elif reason is not None:
            skipped[name] = reason
        elif len(one.folders) == 1 and alone[one.folder] == 1:
            cases.append(Case(name, (one.folder,)))
        else:
            cases.append(Case(name, (one.folder,), files=one.files))
    if wanted is None:
        cases += [Case(_place(root, folder), (folder,)) for folder in broken]
    elif not cases and not skipped:
        raise _nothing(root, wanted, found)
    return FoundScans(tuple(sorted(cases, key=lambda case: case.id)), dict(sorted(skipped.items())))


def is_dicom_tree(root: Path) -> bool:
    """Return whether a folder, or one at any depth below it, holds a file with the DICM mark."""
    return any(holds_dicom(folder) for folder in _folders(root))


def _series(root: Path) -> tuple[list[_Series], list[Path]]:
    """Return the series below a folder, and the folders with files that cannot be read."""
    parts: dict[str, list[tuple[Path, SeriesFacts]]] = defaultdict(list)
    broken: list[Path] = []
    for folder in _folders(root):
        if not (holds_dicom(folder) or any(_is_named_dcm(file) for file in folder.iterdir())):
            continue
        try:
            for facts in list_series(folder):
                if facts.damaged:
                    broken.append(folder)
                else:
                    parts[facts.uid or str(folder)].append((folder, facts))
        except BadInput:  # such as one file that takes too long; the reason is given when the folder is read
            broken.append(folder)
    found = []
    for held in parts.values():
        folders = tuple(folder for folder, _ in held)
        common = Path(os.path.commonpath(folders))
        files = tuple(folder / name for folder, facts in held for name in facts.files)
        found.append(_Series(held[0][1], common, folders, files))
    return found, broken


def _is_named_dcm(path: Path) -> bool:
    return path.suffix.lower() == ".dcm" and not path.is_dir()


def _folders(root: Path) -> Iterator[Path]:
    """Yield a folder and all visible ones below it, in order; links are followed, but none into a folder above."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(root, ())]
    while waiting:
        folder, above = waiting.pop()
        real = os.path.realpath(folder)
        if real in above or len(above) > _DEEPEST:
            continue
        yield folder
        try:
            inner = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        except OSError as error:
            remedy = "check the path and its permissions"
            raise BadInput(folder, f"cannot be read ({error.strerror})", remedy) from None
        waiting += [(entry, (*above, real)) for entry in sorted(inner, reverse=True)]


def _names(root: Path, found: list[_Series]) -> list[str]:
    """Return a name for each series: its folder's, with its number behind it unless it is the only scan there."""
    scans = Counter(one.folder for one in found if one.facts.not_a_scan is None)
    numbers = Counter((one.folder, one.facts.number) for one in found)
    names = []
    for one in found:
        place, number = _place(root, one.folder), one.facts.number
        if one.facts.not_a_scan is None and scans[one.folder] == 1:
            names.append(place)
        elif number is not None and numbers[one.folder, number] == 1:
            names.append(f"{place}_series{number}")
        else:
            names.append(f"{place}_{one.facts.uid.replace('.', '')[-8:] or 'series'}")
    return names


def _place(root: Path, folder: Path) -> str:
    return "_".join(folder.relative_to(root).parts) or root.resolve().name


def _nothing(root: Path, wanted: str, found: list[_Series]) -> BadInput:
    there = [one.facts for one in found if one.facts.not_a_scan is None]
    named = list(dict.fromkeys(one.description or one.uid for one in there))
    more = f" and {len(named) - _MOST_SHOWN} more" if len(named) > _MOST_SHOWN else ""
    return BadInput(root, f"has no series {wanted!r}", f"it has {', '.join(named[:_MOST_SHOWN]) or 'no scan'}{more}")
