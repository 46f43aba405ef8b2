"""Pancreas-CT (NIH, TCIA) in the two incompatible variants ("flavours") of the literature.

A: koncle/CoraNet, FUSSNet, UPCoL, BCP. B: HiLab-git/DTC, MC-Net, MLRP. They have only the intensity window in common.
"""

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from fheat.data.case import Spacing
from fheat.data.crop import crop, enlarge, pad, stretch
from fheat.data.intensity import min_max, window, zscore
from fheat.data.orientation import reorient
from fheat.data.recipes import base
from fheat.io import read_volume
from fheat.io.volume import Volume
from fheat.system.errors import BadInput

WINDOW: Final = (-125.0, 275.0)
"""Lowest and highest value of the intensity window in Hounsfield units."""
SIZE: Final = (96, 96, 96)
"""Smallest number of voxels of a crop along each axis."""
_SOFT_TISSUE: Final = (-50.0, 250.0)
"""Range of soft tissue in Hounsfield units."""
_CLEAR_DIFFERENCE: Final = 0.1
"""Difference of the fractions on soft tissue from which a flipped label counts as the better fit."""


def find(root: Path, options: base.RecipeOptions) -> base.Download:
    """List the folders `PANCREAS_0001/` with one DICOM series each, or CT as NIfTI, and `label0001.nii.gz`."""
    labels = {file.name[5:9]: file for file in base.files_named(root, "label????.nii.gz")}
    named = re.compile(r"(image|PANCREAS_)\d{4}\.nii\.gz")
    scans = [file for file in base.files_named(root, "*.nii.gz") if named.fullmatch(file.name)]
    kind = "nifti"
    if not scans:
        kind = "dicom"
        scans = [folder for folder in root.rglob("PANCREAS_????") if folder.is_dir()]
    cases = []
    for scan in scans:
        name = scan.name.removesuffix(".nii.gz")[-4:]
        cases.append(base.Source(name, scan, labels.get(name)))
    return base.Download(kind, base.cases_by_id(root, cases, "PANCREAS_0001 folders or image0001.nii.gz"))


def prepare_a(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Prepare flavour A: resample as if voxels were cubic, window, min-max; `benchmark_crop` crops all six sides."""
    scan, label = _read(case, options)
    step = 1 / scan.spacing[1]
    shape = [max(1, round(size / step)) for size in scan.data.shape]
    scan, label = (_regrid(one, (step,) * 3, shape, order) for one, order in ((scan, 1), (label, 0)))
    image = Volume(min_max(scan.data.clip(*WINDOW)), scan.affine)
    if options.benchmark_crop:
        box = base.label_box(case, label, past_last=2)
        box = stretch(enlarge(box, shape, [(25, 25)] * 3), shape, SIZE)
        image, label = (pad(crop(one, box), SIZE) for one in (image, label))
    return base.PreparedCase((image,), label)


def prepare_b(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Prepare flavour B: resample with B-splines, window, crop x and y with `benchmark_crop`, z-score the result."""
    scan, label = _read(case, options)
    x, y, z = scan.spacing
    steps = (1 / x, 1 / y, 1 / z)
    # Rounded down, with the spacing in single precision as NIfTI stores it: 310 slices of 0.7 mm give 216, not 217.
    shape = [max(1, int(size * float(np.float32(mm)))) for size, mm in zip(scan.data.shape, scan.spacing, strict=True)]
    scan, label = (_regrid(one, steps, shape, order) for one, order in ((scan, 3), (label, 0)))
    image = Volume(window(scan.data, *WINDOW), scan.affine)
    if options.benchmark_crop:
        box = base.label_box(case, label, past_last=0)
        wide = enlarge(box, shape, [(25, 25), (25, 25), (0, 0)], at_least=(*SIZE[:2], 0))
        image, label = (crop(one, (wide[0], wide[1], (0, shape[2]))) for one in (image, label))
    return base.PreparedCase((Volume(zscore(image.data), image.affine),), label)


def _read(case: base.Source, options: base.RecipeOptions) -> tuple[Volume, Volume]:
    scan = read_volume(case.image if case.image.is_file() else _series(case.image))
    path = base.label_path(case)
    stored = reorient(base.as_label(path, read_volume(path), [1]), scan.orientation)
    if stored.data.shape != scan.data.shape or not np.allclose(stored.spacing, scan.spacing, rtol=1e-2):
        here, there = (f"{one.data.shape} at {one.spacing} mm" for one in (stored, scan))
        raise BadInput(path, f"is {here}, its scan {there}", "check the pair")
    mask = np.ascontiguousarray(_flip(stored.data, options.flip_labels))
    _check_on_tissue(path, scan.data, mask)
    return scan, Volume(mask, scan.affine)


def _series(patient: Path) -> Path:
    """Return the only folder below the folder of a patient that has files, or raise `BadInput`."""
    folders = sorted({file.parent for file in base.files_named(patient, "*")})
    if len(folders) != 1:
        raise BadInput(patient, f"holds {len(folders)} folders with files: expected one series", "keep the CT series")
    return folders[0]


def _check_on_tissue(path: Path, scan: NDArray[Any], mask: NDArray[np.uint8]) -> None:
    """Raise `BadInput` if a flipped label fits the scan clearly better: users report labels that are flipped in y."""
    soft = (scan > _SOFT_TISSUE[0]) & (scan < _SOFT_TISSUE[1])
    share = _share(soft, mask)
    for axes in ("y", "z", "yz"):
        flipped = _share(soft, _flip(mask, axes))
        if flipped > share + _CLEAR_DIFFERENCE:
            reason = f"has {share:.0%} of its voxels on soft tissue, flipped along {axes} {flipped:.0%}"
            raise BadInput(path, reason, f"look at the pair, then give --flip-labels {axes}")


def _flip(data: NDArray[Any], axes: str) -> NDArray[Any]:
    return np.flip(data, tuple("xyz".index(axis) for axis in axes))


def _share(soft: NDArray[np.bool_], mask: NDArray[np.uint8]) -> float:
    return float(soft[mask != 0].mean()) if mask.any() else 0.0


def _regrid(volume: Volume, steps: Spacing, shape: list[int], order: int) -> Volume:
    """Return the volume sampled every `steps` voxels from the first on, which stays in place as in both flavours."""
    data = volume.data if order == 0 else volume.data.astype(np.float32)
    mode = "mirror" if order == 3 else "nearest"  # beyond the border a B-spline continues with its mirror image
    out = ndimage.affine_transform(data, steps, output_shape=tuple(shape), order=order, mode=mode)
    return Volume(out, volume.affine @ np.diag([*steps, 1.0]))


_COMMON: Final = (
    "labels are matched to their scan by the directions of their axes; their origin is not compared",
    "voxel 0 stays in place when resampling; the affine written is the true one",
)
RECIPE_A: Final = base.Recipe(
    name="pancreas-a",
    title="Pancreas, CT (NIH Pancreas-CT), flavour A: CoraNet, FUSSNet, UPCoL, BCP",
    channels=("CT, window [-125, 275] HU",),
    labels={"background": 0, "pancreas": 1},
    find=find,
    prepare=prepare_a,
    steps=(
        *_COMMON,
        "quirk kept: resampled to 1 mm as if the slice distance were the in-plane spacing; linear, labels nearest",
        "clipped to [-125, 275] HU, then least to 0 and greatest to 1",
        "with benchmark_crop: label's box plus 25 voxels on six sides, at least 96 per axis",
        "quirk kept: the box ends one voxel further than the label",
    ),
    options=frozenset({"benchmark_crop", "flip_labels"}),
)
RECIPE_B: Final = base.Recipe(
    name="pancreas-b",
    title="Pancreas, CT (NIH Pancreas-CT), flavour B: DTC, MC-Net, MLRP",
    channels=("CT, window [-125, 275] HU, z-scored",),
    labels={"background": 0, "pancreas": 1},
    find=find,
    prepare=prepare_b,
    steps=(
        *_COMMON,
        "resampled to 1 mm, cubic B-spline, labels nearest",
        "window [-125, 275] HU mapped to [0, 1]",
        "with benchmark_crop: x and y cut to the label's box, grown to 96 voxels, plus 25 per side; z kept",
        "quirk kept: the box ends at the label's last voxel, not after it",
        "z-score of the volume that is left, after the crop",
    ),
    options=frozenset({"benchmark_crop", "flip_labels"}),
)
