"""BraTS 2019, FLAIR only, whole tumour: the pre-processing of HiLab-git/SSL4MIS."""

from pathlib import Path
from typing import Final

import numpy as np

from fheat.data.crop import bounding_box, crop
from fheat.data.intensity import clip_above, moments, zscore
from fheat.data.recipes import base
from fheat.io import read_volume
from fheat.io.volume import Volume
from fheat.system.errors import BadInput


def find(root: Path, options: base.RecipeOptions) -> base.Download:
    """List `<id>/<id>_flair.nii.gz` or `.nii`, in the folders HGG and LGG or any other."""
    cases = []
    for ending in (".nii.gz", ".nii"):
        for file in base.files_named(root, f"*_flair{ending}"):
            name = file.name.removesuffix(f"_flair{ending}")
            label = file.with_name(f"{name}_seg{ending}")
            cases.append(base.Source(name, file, label if label.is_file() else None))
    return base.Download("nifti", base.cases_by_id(root, cases, "*_flair.nii.gz"))


def prepare(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Crop to the brain, clip at the 99.9th percentile, z-score with the statistics of the non-zero voxels."""
    scan = read_volume(case.image)
    mask = base.read_source_label(case, scan, [1, 2, 3, 4])
    box = bounding_box(scan.data, past_last=0)
    if box is None or any(low >= high for low, high in box):
        raise BadInput(case.image, "holds no brain: it is zero everywhere or one voxel thin", "download it again")
    image, label = crop(scan, box), crop(mask, box)
    clipped = clip_above(image.data, 0.999)
    image = Volume(zscore(clipped, *moments(clipped, nonzero=True)), image.affine)
    return base.PreparedCase((image,), Volume((label.data > 0).astype(np.uint8), label.affine))


RECIPE: Final = base.Recipe(
    name="brats2019",
    title="Whole tumour, FLAIR (BraTS 2019)",
    channels=("FLAIR",),
    labels={"background": 0, "whole_tumour": 1},
    find=find,
    prepare=prepare,
    steps=(
        "crop to the box of the voxels that are not zero; it does not use the label",
        "quirk kept: the box ends at the last such voxel, not after it, so one slice per axis is lost",
        "clip at the 99.9th percentile of the cropped scan, background included",
        "z-score with mean and standard deviation of the voxels that are not zero, applied to all: background is not 0",
        "labels 1, 2, 4 become 1",
    ),
)
