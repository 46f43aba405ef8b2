"""Medical Segmentation Decathlon, Task01_BrainTumour: four channels in one file, three nested regions."""

from pathlib import Path
from typing import Any, Final

from fheat.data.intensity import moments, zscore
from fheat.data.layouts import msd
from fheat.data.recipes import base
from fheat.io import read_volume
from fheat.io.volume import Volume
from fheat.system.errors import BadInput

CHANNELS: Final = ("FLAIR", "T1w", "T1gd", "T2w")


def find(root: Path, options: base.RecipeOptions) -> base.Download:
    """List the cases of `dataset.json`: `training` with labels, `test` without."""
    if not (root / "dataset.json").exists():
        raise BadInput(root / "dataset.json", "is missing", "give the folder Task01_BrainTumour as unpacked")
    cases = [base.Source(case.id, case.images[0], case.label, case.unlabelled) for case in msd.read(root).cases]
    return base.Download("msd", base.cases_by_id(root, cases, "cases in dataset.json"))


def prepare(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Split the channels and z-score each with the statistics of its non-zero voxels. The label is not changed."""
    scan = read_volume(case.image)
    if scan.data.ndim != 4 or scan.data.shape[3] != len(CHANNELS):
        raise BadInput(case.image, f"has shape {scan.data.shape}: expected (X, Y, Z, 4)", "check that it is Task01")
    images = []
    for index, name in enumerate(CHANNELS):
        channel: Any = scan.data[..., index]
        if channel.min() == channel.max():
            raise BadInput(case.image, f"channel {name} holds the value {channel.flat[0]} everywhere", "copy it again")
        images.append(Volume(zscore(channel, *moments(channel, nonzero=True)), scan.affine))
    label = None if case.unlabelled else base.read_source_label(case, images[0], [1, 2, 3])
    return base.PreparedCase(tuple(images), label)


RECIPE: Final = base.Recipe(
    name="msd-task01",
    title="Brain tumour, four MRI sequences (Medical Segmentation Decathlon, Task01)",
    channels=CHANNELS,
    labels={"background": 0, "whole_tumour": [1, 2, 3], "tumour_core": [2, 3], "enhancing_tumour": [3]},
    find=find,
    prepare=prepare,
    steps=(
        "each channel z-scored with mean and standard deviation of its voxels that are not zero, applied to all",
        "labels kept: 1 edema, 2 non-enhancing tumour, 3 enhancing tumour",
    ),
)
