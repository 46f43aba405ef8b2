"""Head and neck tumours (HNTS-MRG 2024): T2-weighted MRI before radiotherapy, primary tumour and lymph nodes."""

from pathlib import Path
from typing import Final

from fheat.data.intensity import zscore
from fheat.data.recipes import base
from fheat.io import read_volume
from fheat.io.volume import Volume

_IMAGE, _LABEL = "_preRT_T2.nii.gz", "_preRT_mask.nii.gz"


def find(root: Path, options: base.RecipeOptions) -> base.Download:
    """List `<id>/preRT/<id>_preRT_T2.nii.gz`; scans during therapy and registered copies are ignored."""
    cases = []
    for file in base.files_named(root, f"preRT/*{_IMAGE}"):
        name = file.name.removesuffix(_IMAGE)
        label = file.with_name(f"{name}{_LABEL}")
        cases.append(base.Source(name, file, label if label.is_file() else None))
    return base.Download("nifti", base.cases_by_id(root, cases, f"preRT/*{_IMAGE}"))


def prepare(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Z-score the whole scan. The label is not changed."""
    scan = read_volume(case.image)
    base.check_not_constant(case.image, scan)
    label = base.read_source_label(case, scan, [1, 2])
    return base.PreparedCase((Volume(zscore(scan.data), scan.affine),), label)


RECIPE: Final = base.Recipe(
    name="hnc",
    title="Head and neck tumours before radiotherapy, T2-weighted MRI (HNTS-MRG 2024, task 1)",
    channels=("T2w",),
    labels={"background": 0, "GTVp": 1, "GTVn": 2},
    find=find,
    prepare=prepare,
    steps=(
        "z-score with mean and standard deviation of the whole scan: this project's choice, the paper names none",
        "labels kept: 1 primary gross tumour volume, 2 nodal gross tumour volume",
    ),
)
