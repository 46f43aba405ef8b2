"""Layouts: datasets read where they lie, one layout per file. Nothing is copied, moved or written."""

from pathlib import Path
from typing import Final, Protocol

from fheat.data.case import Dataset
from fheat.data.layouts import h5_lists, monai, msd, nnunet, plain
from fheat.system.errors import BadInput


class Layout(Protocol):
    """What each module of this package provides."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """Name shown to the user."""

    def recognises(self, place: Path) -> bool:
        """Say whether the folder (or datalist file) has this layout; never raises on foreign content."""

    def read(self, place: Path) -> Dataset:
        """List the cases, or raise `BadInput`."""


# The first that recognises a folder reads it: from the most to the least explicit description.
LAYOUTS: Final[tuple[Layout, ...]] = (nnunet, msd, h5_lists, monai, plain)


def open_dataset(folder: str | Path) -> Dataset:
    """List the cases of a dataset folder, or of a datalist file, without reading a voxel.

    Raises `BadInput` where the folder is empty, where no layout fits, or where a description is malformed.
    """
    place = Path(folder)
    if not place.exists():
        raise BadInput(place, "does not exist", "give the folder of a dataset or a datalist file")
    if place.name == "dataset.json":
        place = place.parent
    for layout in LAYOUTS:
        if layout.recognises(place):
            return layout.read(place)
    if place.is_dir() and not any(path.is_file() or path.is_symlink() for path in place.rglob("[!.]*")):
        raise BadInput(
            place, "holds no scan: the folder is empty", "give a folder of scans or a dataset, see docs/data.md"
        )
    known = ", ".join(layout.NAME for layout in LAYOUTS)
    raise BadInput(place, f"has no known layout ({known})", "see docs/data.md for what each looks like")
