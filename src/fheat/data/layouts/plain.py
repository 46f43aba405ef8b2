"""Plain folders: `images/` and `labels/` with equal names, perhaps `unlabelled/`; or a folder of images alone."""

from pathlib import Path
from typing import Final

from fheat.data.case import Case, Dataset
from fheat.data.layouts.common import by_channel, image_files, labels_without_image

NAME: Final = "plain folders"

_IMAGES: Final = ("images", "imagesTr", "image")
_LABELS: Final = ("labels", "labelsTr", "label", "masks")
_UNLABELLED: Final = ("unlabelled", "unlabeled", "imagesUn")


def recognises(place: Path) -> bool:
    """Say whether there are images, in a folder of their own or directly here."""
    return place.is_dir() and (_first(place, _IMAGES) is not None or bool(image_files(place)))


def read(place: Path) -> Dataset:
    """List the cases by name. `<id>_0000`, `<id>_0001` are channels of `<id>` unless a label has one of those names.

    In a folder of images alone every label is missing and nobody said so: `check` reports it, predicting does not mind.
    A folder among the images is taken for a DICOM series.
    """
    inner = _first(place, _IMAGES)
    labels = image_files(_first(place, _LABELS) or place / _LABELS[0])
    files = image_files(place) if inner is None else image_files(inner, series=True)
    own: dict[str, tuple[Path, ...]] = {name: (path,) for name, path in files.items()}
    images = own if labels.keys() & files.keys() else by_channel(files)
    unlabelled = by_channel(image_files(_first(place, _UNLABELLED) or place / _UNLABELLED[0], series=True))
    return Dataset(
        name=place.resolve().name,
        root=place,
        layout=NAME,
        cases=(
            *(Case(name, paths, label=labels.get(name, _own_label(paths))) for name, paths in images.items()),
            *(Case(name, paths, unlabelled=True) for name, paths in unlabelled.items()),
        ),
        problems=labels_without_image(labels, images),
    )


def _own_label(images: tuple[Path, ...]) -> Path | None:
    """Return the h5 file itself, which may hold a label beside the image."""
    return images[0] if images[0].suffix == ".h5" else None


def _first(place: Path, names: tuple[str, ...]) -> Path | None:
    return next((place / name for name in names if (place / name).is_dir()), None)
