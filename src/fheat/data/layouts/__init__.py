"""Layouts: how datasets are laid out on disk, one layout per file. A dataset is read in place; nothing is written.

A new layout is one new file in this folder, with the three names of `Layout`, and one line in `LAYOUTS`.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from fheat.data.case import Dataset
from fheat.data.layouts.common import load_json
from fheat.system.errors import BadInput


class Layout(Protocol):
    """The names that each module of a layout defines."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """Name of the layout, as it is shown to users."""

    def recognises(self, path: Path) -> bool:
        """Return whether a folder (or a datalist file) has this layout; never raise on other content."""

    def read(self, path: Path) -> Dataset:
        """Return the cases of a dataset with this layout, without reading a voxel, or raise `BadInput`."""


LAYOUTS: Final[tuple[Layout, ...]] = tuple(
    cast("Layout", import_module(f"{__name__}.{name}"))
    for name in (
        "nnunet",
        "msd",
        "h5_lists",
        "monai",
        "plain",
    )
)
"""All layouts, from the most to the least explicit; the first one that recognises a folder reads it."""


def open_dataset(folder: str | Path) -> Dataset:
    """Return the cases of a dataset folder, or of a datalist file, without reading a voxel.

    Raises `BadInput` if the folder is empty, if no layout recognises it, or if a description is malformed.
    """
    path = Path(folder)
    try:
        exists = path.exists()
    except OSError as error:  # no file can have such a name
        raise BadInput(str(path)[:80], f"cannot be read ({error.strerror})", "give the folder of a dataset") from None
    if not exists:
        raise BadInput(path, "does not exist", "give the folder of a dataset or a datalist file")
    if path.name == "dataset.json":
        path = path.parent
    for description in (path / "dataset.json", *([path] if path.suffix == ".json" and not path.is_dir() else [])):
        if os.path.lexists(description):
            load_json(description)  # a damaged one is not passed over: it says what is unlabelled
    for layout in LAYOUTS:
        if layout.recognises(path):
            return layout.read(path)
    if path.is_dir() and not any(child.is_file() or child.is_symlink() for child in path.rglob("[!.]*")):
        remedy = "give a folder of scans or a dataset, see docs/reference/data.md"
        raise BadInput(path, "holds no scan: the folder is empty", remedy)
    known = ", ".join(layout.NAME for layout in LAYOUTS)
    raise BadInput(path, f"has no known layout ({known})", "see docs/reference/data.md for what each looks like")
