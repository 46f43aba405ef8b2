"""Left atrium (2018 Atrial Segmentation Challenge): the original NRRD release, or the h5 files of yulequan/UA-MT."""

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

from fheat.data.crop import Box, crop, enlarge
from fheat.data.intensity import zscore
from fheat.data.recipes import base
from fheat.io import read_volume
from fheat.io.h5 import read_h5
from fheat.io.volume import Volume
from fheat.system.errors import BadInput

SPACING: Final = (0.625, 0.625, 0.625)
"""Distance of voxels in millimetres."""
PATCH: Final = 112
"""Smallest number of voxels of a crop along x and y, without its margins."""
_MARGINS: Final = (10, 20)
"""Range of the random margins in voxels; the upper end is excluded."""
_IMAGE, _LABEL, _H5 = "lgemri.nrrd", "laendo.nrrd", "mri_norm2.h5"


def find(root: Path, options: base.RecipeOptions) -> base.Download:
    """List `<id>/lgemri.nrrd`, or `<id>/mri_norm2.h5` if there are none; the id is the name of the folder."""
    originals = [
        base.Source(file.parent.name, file, label if (label := file.with_name(_LABEL)).is_file() else None)
        for file in base.files_named(root, _IMAGE)
    ]
    if originals:
        return base.Download("nrrd", base.cases_by_id(root, originals, _IMAGE))
    cases = base.cases_by_id(
        root, (base.Source(file.parent.name, file, file) for file in base.files_named(root, _H5)), f"{_IMAGE} or {_H5}"
    )
    if options.benchmark_crop:
        raise BadInput(root, f"holds {_H5} files, which are cropped already", "leave out --benchmark-crop")
    return base.Download("h5", cases, cropped=True)


def prepare(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Z-score the whole scan, then crop with `benchmark_crop`. The h5 files are z-scored and cropped already."""
    if case.image.name == _H5:
        scan, mask = read_h5(case.image, spacing=SPACING)
        if mask is None:
            raise BadInput(case.image, "has no field label", "download it again")
        image = Volume(scan.data.astype(np.float32), scan.affine)
        return base.PreparedCase((image,), base.as_label(case.image, mask, [1]))
    scan = read_volume(case.image)
    base.check_not_constant(case.image, scan)
    mask = base.read_source_label(case, scan, [1, 255])
    image = Volume(zscore(scan.data), scan.affine)
    label = Volume((mask.data > 0).astype(np.uint8), mask.affine)
    if options.benchmark_crop:
        box = base.label_box(case, label, past_last=0)
        x, y, _ = enlarge(box, label.data.shape, margins(case.id), at_least=(PATCH, PATCH, 0))
        image, label = (crop(one, (x, y, (0, label.data.shape[2]))) for one in (image, label))
    return base.PreparedCase((image,), label)


def margins(case: str) -> Box:
    """Return random margins of 10 to 19 voxels before and after in x and y; the id of the case is the seed."""
    seed = int.from_bytes(hashlib.sha256(case.encode()).digest()[:8], "big")
    a, b, c, d = np.random.default_rng(seed).integers(*_MARGINS, size=4).tolist()
    return (a, b), (c, d), (0, 0)


RECIPE: Final = base.Recipe(
    name="la",
    title="Left atrium, late gadolinium-enhanced MRI (2018 Atrial Segmentation Challenge)",
    channels=("LGE-MRI",),
    labels={"background": 0, "left_atrium": 1},
    find=find,
    prepare=prepare,
    steps=(
        "z-score with mean and standard deviation of the whole scan, before any crop",
        "with benchmark_crop: x and y cut to the label's box, grown to 112 voxels, plus 10 to 19 per side; z kept",
        "quirk kept: the box ends at the label's last voxel, not after it",
        "margins are drawn with the case id as seed; the published files were drawn without one and differ by them",
        "h5 files are z-scored and cropped by their authors and taken as they are, spacing 0.625 mm",
    ),
    options=frozenset({"benchmark_crop"}),
)
