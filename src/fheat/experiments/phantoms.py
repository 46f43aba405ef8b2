"""Small synthetic datasets with the channels and classes of those of the paper, so that every row can run anywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from fheat.data.layouts.nnunet import RawWriter, dataset_json
from fheat.data.phantom import phantom
from fheat.data.recipes import RECIPES, Recipe
from fheat.experiments.records import datasets
from fheat.io.volume import Volume
from fheat.system.progress import Progress, silent

SHAPE: Final = (32, 32, 32)
"""Size of a scan: one window of a tiny network."""
TRAINING, VALIDATION, TEST = 4, 1, 2
"""Number of scans of each split."""


def paper_phantoms(folder: Path, progress: Progress = silent) -> dict[str, Path]:
    """Write what is missing of the synthetic datasets, and return the folder of each dataset of the paper.

    Datasets with the same number of channels and the same classes share a folder, so that their runs are shared too.
    """
    by_form: dict[tuple[int, tuple[tuple[int, ...], ...]], Path] = {}
    found: dict[str, Path] = {}
    for done, (name, dataset) in enumerate(datasets().items(), start=1):
        recipe = RECIPES[dataset.recipe]
        form = len(recipe.channels), tuple(regions_of(recipe).values())
        path = by_form.setdefault(form, folder / name)
        if not (path / "dataset.json").is_file():  # which is written last
            _write(path, recipe)
        found[name] = path
        progress(done, len(datasets()))
    return found


def regions_of(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Return the label values of every class but the background."""
    return {
        name: tuple(values) if isinstance(values, list) else (values,)
        for name, values in recipe.labels.items()
        if values != 0
    }


def _write(folder: Path, recipe: Recipe) -> None:
    writer = RawWriter(folder)
    names = [f"phantom_{number:04d}" for number in range(TRAINING + VALIDATION + TEST)]
    for number, name in enumerate(names):
        scan = phantom(np.random.SeedSequence(0, spawn_key=(number,)), SHAPE, geometry="canonical")
        label = Volume(with_values(scan.label.data > 0, list(regions_of(recipe).values())), scan.label.affine)
        images = [_channel(scan.image, channel) for channel in range(len(recipe.channels))]
        writer.write_case(name, images, label, test=number >= TRAINING + VALIDATION)
    training = names[: TRAINING + VALIDATION]
    described = dataset_json(
        name=f"phantoms of {recipe.name}",
        title="synthetic scans, no patient data",
        channels=recipe.channels,
        labels=recipe.labels,
        training=len(training),
    )
    writer.finish(described, {"order": training, "validation": training[TRAINING:]})


def with_values(inside: NDArray[np.bool_], regions: Sequence[tuple[int, ...]]) -> NDArray[np.uint8]:
    """Return a label map with the values of all regions inside a mask, each of about as many voxels.

    Nested regions become shells, the innermost deepest inside; exclusive classes become slabs across the first axis.
    """
    values = sorted({value for region in regions for value in region})
    depth = (
        distance_transform_edt(inside) if any(len(region) > 1 for region in regions) else np.indices(inside.shape)[0]
    )
    order = np.argsort(depth[inside], kind="stable")
    part = np.empty(len(order), dtype=np.int64)
    part[order] = np.arange(len(order)) * len(values) // max(len(order), 1)
    label = np.zeros(inside.shape, dtype=np.uint8)
    label[inside] = np.array(values, dtype=np.uint8)[part]
    return label


def _channel(image: Volume, channel: int) -> Volume:
    """Return the scan as another sequence would show it: a power of its intensities; the first channel is the scan."""
    voxels = image.data.astype(np.float32)
    return Volume(voxels ** np.float32(1 / (1 + channel)), image.affine)
