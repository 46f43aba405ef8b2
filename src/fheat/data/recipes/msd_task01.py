"""Medical Segmentation Decathlon, Task01_BrainTumour: four channels in one file, three nested regions."""

import json
from pathlib import Path
from typing import Any, Final

from fheat.data.intensity import nonzero_statistics, zscore
from fheat.data.recipes.base import (
    Found,
    Options,
    Prepared,
    Recipe,
    Source,
    as_label,
    cases_by_id,
    check_same_grid,
    label_path,
)
from fheat.errors import BadInput
from fheat.io.nifti import read_nifti
from fheat.io.volume import Volume

CHANNELS: Final = ("FLAIR", "T1w", "T1gd", "T2w")


def find(root: Path, options: Options) -> Found:
    """List what `dataset.json` lists: `training` with labels, `test` without."""
    index = root / "dataset.json"
    try:
        facts = json.loads(index.read_text())
        training = [(str(pair["image"]), str(pair["label"])) for pair in facts["training"]]
        test = [str(name) for name in facts.get("test", [])]
    except FileNotFoundError:
        raise BadInput(index, "is missing", "give the folder Task01_BrainTumour as unpacked") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(index, f"does not list training and test cases ({error})", "download it again") from None
    cases = [_source(root, index, image, label) for image, label in training]
    cases += [_source(root, index, image, None) for image in test]
    return Found("msd", cases_by_id(root, cases, "cases in dataset.json"))


def _source(root: Path, index: Path, image: str, label: str | None) -> Source:
    scan = _inside(root, index, image)
    mask = None if label is None else _inside(root, index, label)
    return Source(scan.name.removesuffix(".gz").removesuffix(".nii"), scan, mask, unlabelled=label is None)


def _inside(root: Path, index: Path, name: str) -> Path:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BadInput(index, f"names {name!r}, outside its folder", "download it again")
    return root / name


def prepare(case: Source, options: Options) -> Prepared:
    """Split the channels and z-score each by its voxels that are not zero. Labels are kept."""
    scan = read_nifti(case.image)
    if scan.data.ndim != 4 or scan.data.shape[3] != len(CHANNELS):
        raise BadInput(case.image, f"has shape {scan.data.shape}: expected (X, Y, Z, 4)", "check that it is Task01")
    images = []
    for index, name in enumerate(CHANNELS):
        channel: Any = scan.data[..., index]
        if channel.min() == channel.max():
            raise BadInput(case.image, f"channel {name} holds the value {channel.flat[0]} everywhere", "copy it again")
        images.append(Volume(zscore(channel, *nonzero_statistics(channel)), scan.affine))
    path = label_path(case)
    if path is None:
        return Prepared(tuple(images), None)
    label = as_label(path, read_nifti(path), [1, 2, 3])
    check_same_grid(path, label, images[0])
    return Prepared(tuple(images), label)


RECIPE: Final = Recipe(
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
