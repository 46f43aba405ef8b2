"""AbdomenCT-1K: liver, kidneys, spleen, pancreas in CT of a thousand patients."""

from pathlib import Path
from typing import Final

from fheat.data.intensity import window
from fheat.data.recipes import base
from fheat.data.resample import resample
from fheat.io import read_volume
from fheat.io.volume import Volume

WINDOW: Final = (-160.0, 240.0)
"""Lowest and highest value of the intensity window in Hounsfield units."""
_IMAGE = "_0000.nii.gz"


def find(root: Path, options: base.RecipeOptions) -> base.Download:
    """List `Case_00001_0000.nii.gz` in any folder, with `Case_00001.nii.gz` of a folder `labelsTr` or `Mask*`.

    The labels of some scans are not published. A scan without a label counts as declared unlabelled if it is in
    `imagesTs` or in a folder of the original release; in `imagesTr` its label is missing.
    """
    labels = {
        file.name.removesuffix(".nii.gz"): file
        for file in base.files_named(root, "Case_?????.nii.gz")
        if file.parent.name == "labelsTr" or file.parent.name.startswith("Mask")
    }
    cases = []
    for file in base.files_named(root, f"Case_?????{_IMAGE}"):
        name = file.name.removesuffix(_IMAGE)
        label = labels.get(name)
        cases.append(base.Source(name, file, label, unlabelled=label is None and file.parent.name != "imagesTr"))
    return base.Download("nifti", base.cases_by_id(root, cases, f"Case_00001{_IMAGE}"))


def prepare(case: base.Source, options: base.RecipeOptions) -> base.PreparedCase:
    """Resample if a spacing is given, then map the window to [0, 1]."""
    scan = read_volume(case.image)
    label = None if case.unlabelled else base.read_source_label(case, scan, [1, 2, 3, 4])
    if options.spacing is not None:
        scan = resample(scan, options.spacing)
        label = None if label is None else resample(label, options.spacing, labels=True)
    return base.PreparedCase((Volume(window(scan.data, *WINDOW), scan.affine),), label)


RECIPE: Final = base.Recipe(
    name="abdomenct1k",
    title="Liver, kidneys, spleen and pancreas, CT (AbdomenCT-1K)",
    channels=("CT, window [-160, 240] HU",),
    labels={"background": 0, "liver": 1, "kidney": 2, "spleen": 3, "pancreas": 4},
    find=find,
    prepare=prepare,
    steps=(
        "spacing kept, or resampled as option spacing says: linear, labels nearest",
        "window [-160, 240] HU mapped to [0, 1]: this project's choice, the paper names none",
    ),
    options=frozenset({"spacing"}),
)
