"""The scans of the demo: synthetic ones, or those of a folder; which are held out, and the grid and crops that suit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fheat.data.case import Case, Dataset, Spacing
from fheat.data.folds import Fold, with_fold
from fheat.data.grid import Size, common_grid, outline, size_on
from fheat.data.layouts import open_dataset
from fheat.data.phantom import write_phantoms
from fheat.data.preprocessing import Preprocessing
from fheat.data.read import read_image
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent

SHAPE: Final = (36, 36, 36)
FIELD_OF_VIEW: Final = 60.0
"""Field of view of the synthetic scans in millimetres: cropped around the heart, as those of the LA benchmark are."""
CONTRAST: Final = 3.0
"""How much the contrast differs between the synthetic scans, as between scanners: few labelled scans show only a part
of what the unlabelled ones show. See `phantom`."""
PATCH: Final = (32, 32, 32)
CASES: Final = 80
TEST: Final = 12
MOST_HELD_OUT: Final = 40
"""Largest number of scans of a folder that are compared with their labels at the end."""
MOST_VOXELS: Final = 64
"""Number of voxels along an axis above which the scans of a folder are brought to a coarser grid."""
SCANS_LOOKED_AT: Final = 16
"""Number of scans of a folder that decide grid and crops."""
_FOLD: Final = Fold(1, 5)
"""Fold that is held out of a folder without validation scans and without labelled test scans."""
_SIDES: Final = (32, 48)
"""Shortest and longest side of a crop, in voxels."""


@dataclass(frozen=True)
class DemoData:
    """A dataset, and how the demo uses it."""

    folder: Path
    labelled: int
    """Number of training scans whose labels are used."""
    unlabelled: int
    """Number of training scans that are used without a label."""
    held_out: tuple[Case, ...]
    """Scans with a label that no training sees."""
    apart: bool
    """Whether the held-out scans are others than those that validate, so that the best iteration may be chosen."""
    patch: Size
    fold: str | None = None
    spacing: Spacing | None = None
    """Spacing of the grid in millimetres; the median of the scans if None."""
    synthetic: bool = False

    def settings(self) -> dict[str, object]:
        """Return the settings of a run on these scans."""
        given = {"fold": self.fold, "spacing": self.spacing}
        chosen = {name: value for name, value in given.items() if value is not None}
        return {"data": str(self.folder), "labelled": self.labelled, "patch_size": self.patch, **chosen}


def synthetic_scans(folder: Path, labelled: int, seed: int, progress: Progress = silent) -> DemoData:
    """Write phantoms into the folder, which is new or empty, and return how they are used."""
    write_phantoms(
        folder,
        CASES,
        seed=seed,
        shape=SHAPE,
        test=TEST,
        geometry="canonical",
        field_of_view=FIELD_OF_VIEW,
        contrast=CONTRAST,
        progress=progress,
    )
    dataset = open_dataset(folder)
    unlabelled = len(dataset.split("train")) - labelled
    if unlabelled < 1:
        raise BadInput("--labelled", f"is {labelled} of {len(dataset.split('train'))} training scans", "give fewer")
    return DemoData(folder, labelled, unlabelled, dataset.split("test"), apart=True, patch=PATCH, synthetic=True)


def scans_of_folder(folder: Path, labelled: int, progress: Progress = silent) -> DemoData:
    """Return how the scans of any dataset that `fheat train` reads are used, or raise `BadInput`.

    Held out are the labelled test scans; else the validation scans; else every fifth labelled scan. The grid is that of
    the scans, but coarser along an axis on which they have more than 64 voxels in the median, and the sides of a crop
    are the largest multiples of 16 from 32 to 48 that the median scan has.
    """
    dataset, fold = _divided(open_dataset(folder))
    training = dataset.split("train")
    with_label = sum(case.label is not None for case in training)
    if labelled >= len(training) or labelled > with_label:
        reason = f"has {len(training)} scans to train with, {with_label} of them with a label; {labelled} with a label "
        raise BadInput(folder, f"{reason}and more without are needed", "give a smaller --labelled or more scans")
    test = tuple(case for case in dataset.split("test") if case.label is not None)
    held_out = (test or dataset.split("validation"))[:MOST_HELD_OUT]
    spacing, patch = _grid_and_crop(training, progress)
    return DemoData(folder, labelled, len(training) - labelled, held_out, bool(test), patch, fold, spacing)


def _divided(dataset: Dataset) -> tuple[Dataset, str | None]:
    """Return a dataset with scans to hold out: as it is, or with a fold where it names none."""
    if dataset.split("validation") or any(case.label is not None for case in dataset.split("test")):
        return dataset, None
    return with_fold(dataset, _FOLD), str(_FOLD)


def _grid_and_crop(training: tuple[Case, ...], progress: Progress) -> tuple[Spacing | None, Size]:
    looked_at = training[:SCANS_LOOKED_AT]
    outlines = []
    for done, case in enumerate(looked_at, start=1):
        outlines.append(outline(read_image(case)))
        progress(done, len(looked_at))
    grid = common_grid(outlines, Preprocessing())
    assert grid.spacing is not None
    sizes = np.median([size_on(one, grid) for one in outlines], axis=0)
    steps = np.maximum(sizes / MOST_VOXELS, 1)
    x, y, z = (float(f"{distance * step:.4g}") for distance, step in zip(grid.spacing, steps, strict=True))
    shortest, longest = _SIDES
    first, second, third = (int(np.clip(side // 16 * 16, shortest, longest)) for side in sizes / steps)
    return (x, y, z) if (steps > 1).any() else None, (first, second, third)
