"""The tasks that compare masks: with a reference, with a correction by hand, and a dataset with its predictions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.data.classes import LARGEST_VALUE, millilitres
from fheat.data.layouts import open_dataset
from fheat.data.read import fractions, integers, read_label
from fheat.io import read_volume, trusting, write_nifti
from fheat.io.volume import Volume, grid_difference
from fheat.metrics.evaluate import evaluate_labels
from fheat.metrics.masks import dice
from fheat.system.errors import BadInput
from fheat.system.progress import Progress


def compare(folder: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Compare the mask of a job with a reference, class by class, and write where they differ.

    Arguments: `mask`, `reference` (files), `regions` (label values by class). The file `difference.nii.gz` is 1 where
    only the mask has a label, 2 where only the reference has one, 3 where both have one.
    """
    with trusting():
        mask, stored = read_volume(arguments["mask"]), read_volume(arguments["reference"])
    reference = _labels(stored, "the reference")
    if difference := grid_difference(mask, reference):
        reason = f"{difference.field} of the reference is {difference.second}, that of the scan {difference.first}"
        raise BadInput("reference", reason, "give a reference on the grid of the scan")
    scores = evaluate_labels(mask.data, reference.data, arguments["regions"], mask.spacing)
    where = (mask.data > 0).astype(np.uint8) + 2 * (reference.data > 0).astype(np.uint8)
    write_nifti(Volume(where, mask.affine), folder / "difference.nii.gz")
    shown = ("dice", "jaccard", "hd95", "asd")
    return {"scores": {name: {key: one[key] for key in shown} for name, one in scores.items()}, "unit": "mm"}


def correct(folder: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write a mask that was corrected by hand with the affine of its scan, and count the voxels that were changed.

    Arguments: `scan`, `corrected` (files), `mask` (file or None), `target` (file to write), `largest` (largest label
    value), `regions`, `same_place` (whether the affine of the correction must be that of the scan; it is not kept
    either way).
    """
    with trusting():
        scan, stored = read_volume(arguments["scan"]), read_volume(arguments["corrected"])
        mask = None if arguments["mask"] is None else read_volume(arguments["mask"])
    corrected = _labels(stored, "the corrected mask")
    if corrected.data.shape != scan.data.shape[:3]:
        reason = f"the corrected mask has shape {corrected.data.shape}, the scan {scan.data.shape[:3]}"
        raise BadInput("corrected", reason, "draw on the scan itself")
    if arguments["same_place"] and (difference := grid_difference(scan, corrected)):
        reason = f"{difference.field} of the label is {difference.second}, that of the scan {difference.first}"
        raise BadInput("corrected", reason, "give a label on the grid of the scan")
    highest = int(corrected.data.max())
    if highest > arguments["largest"]:
        reason = f"the corrected mask holds {highest}, the classes go up to {arguments['largest']}"
        raise BadInput("corrected", reason, "use the classes of the model")
    result = Volume(corrected.data.astype(np.uint8), scan.affine)
    write_nifti(result, Path(arguments["target"]))
    return {
        "changed_voxels": int(np.count_nonzero(result.data != (0 if mask is None else mask.data))),
        "volumes_ml": millilitres(result, arguments["regions"]),
    }


def _labels(stored: Volume, what: str) -> Volume:
    """Return label values (X, Y, Z) from 0 to 255, or raise `BadInput`."""
    if stored.data.ndim != 3:
        raise BadInput(what, f"{what} has shape {stored.data.shape}", "give label values (X, Y, Z)")
    data = integers(stored.data)
    if data is None:
        raise BadInput(what, f"{what} holds {fractions(stored.data)}", "give whole numbers")
    if int(data.min()) < 0 or int(data.max()) > LARGEST_VALUE:
        reason = f"{what} holds values from {data.min()} to {data.max()}"
        raise BadInput(what, reason, f"give label values from 0 to {LARGEST_VALUE}, not a scan")
    return Volume(data, stored.affine)


def score_dataset(folder: Path, arguments: dict[str, Any], progress: Progress) -> list[dict[str, float] | str | None]:
    """Return the Dice by class of some cases of a dataset, from the one at `first` on.

    Arguments: `dataset` (folder), `first`, `predictions` (file or None for each case). In the order of the cases:
    numbers by class, None without a label or a prediction, or a line that says why there are none.
    """
    dataset, predictions = open_dataset(arguments["dataset"]), arguments["predictions"]
    scores: list[dict[str, float] | str | None] = []
    for case, prediction in zip(dataset.cases[arguments["first"] :], predictions, strict=False):
        try:
            label = None if prediction is None else read_label(case)
            scores.append(None if label is None else _dice(read_volume(prediction), label, dataset.labels))
        except BadInput as error:
            scores.append(f"{error.reason}; {error.remedy}")
        progress(len(scores), len(predictions))
    return scores


def _dice(prediction: Volume, label: Volume, names: Mapping[str, Sequence[int]]) -> dict[str, float]:
    if difference := grid_difference(label, prediction):
        reason = f"{difference.field} of the prediction is {difference.second}, that of the label {difference.first}"
        raise BadInput("prediction", reason, "predict this dataset")
    values: NDArray[Any] = np.unique(label.data)
    regions = names or {f"label {value}": (int(value),) for value in values if value}
    return {
        name: round(dice(np.isin(prediction.data, inside), np.isin(label.data, inside)), 4)
        for name, inside in ((name, list(inside)) for name, inside in regions.items())
        if any(inside)
    }
