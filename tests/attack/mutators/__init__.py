"""The kinds of files that are attacked, each with its mutations; one file per format."""

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from tests.attack.kinds import Kind

NAMES: Final = {
    "nifti": "nifti",
    "nifti2": "nifti",
    "nifti-gz": "nifti",
    "nrrd": "nrrd",
    "dicom": "dicom",
    "h5": "h5",
    "weights": "models",
    "model.json": "models",
    "checkpoint": "runs",
    "log": "runs",
    "config": "settings",
    "sweep": "settings",
    "dataset": "datasets",
    "scores.json": "results",
    "scores.csv": "results",
}
"""Every kind and the module that has it; a module is imported when one of its kinds is attacked."""


def kinds(names: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds of these names, or all."""
    return [
        next(kind for kind in import_module(f"{__name__}.{NAMES[name]}").KINDS if kind.name == name)
        for name in names or NAMES
    ]
