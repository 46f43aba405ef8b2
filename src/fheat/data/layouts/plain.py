"""Plain folders: `images/` and `labels/` with equal file names, optionally `unlabelled/`; or a folder of images."""

from pathlib import Path
from typing import Final

from fheat.data.case import Case, Dataset
from fheat.data.layouts.common import by_channel, image_files, labels_without_image

NAME: Final = "plain folders"

# Accepted names of each folder; the first one that exists is used.
_IMAGES: Final = ("images", "imagesTr", "image")
_LABELS: Final = ("labels", "labelsTr", "label", "masks")
_UNLABELLED: Final = ("unlabelled", "unlabeled", "imagesUn")


def recognises(path: Path) -> bool:
    """Return whether there are images, in a folder of their own or directly here."""
    return path.is_dir() and (_first(path, _IMAGES) is not None or bool(image_files(path)))


def read(path: Path) -> Dataset:
    """Return the cases by name. `<id>_0000`, `<id>_0001` are channels of `<id>` unless a label has one of those names.

    In a folder of images alone all labels are missing without a declaration: `check` reports them, prediction does not
    need them. A folder among the images is read as a DICOM series.
    """
    inner = _first(path, _IMAGES)
    labels = image_files(_first(path, _LABELS) or path / _LABELS[0])
    files = image_files(path) if inner is None else image_files(inner, series=True)
    own: dict[str, tuple[Path, ...]] = {name: (file,) for name, file in files.items()}
    images = own if labels.keys() & files.keys() else by_channel(files)
    unlabelled = by_channel(image_files(_first(path, _UNLABELLED) or path / _UNLABELLED[0], series=True))
    return Dataset(
        name=path.resolve().name,
        root=path,
        layout=NAME,
        cases=(
            *(Case(name, paths, label=labels.get(name, _own_label(paths))) for name, paths in images.items()),
            *(Case(name, paths, unlabelled=True) for name, paths in unlabelled.items()),
        ),
        problems=labels_without_image(labels, images),
    )


def _own_label(images: tuple[Path, ...]) -> Path | None:
    """Return the h5 file itself, which may contain a label too, or None for other files."""
    return images[0] if images[0].suffix == ".h5" else None


def _first(path: Path, names: tuple[str, ...]) -> Path | None:
    return next((path / name for name in names if (path / name).is_dir()), None)
