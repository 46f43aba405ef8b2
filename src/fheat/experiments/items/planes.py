"""Fig. 8 and 9: the same planes of three scans, segmented by the network of every row."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fheat.data.case import Case
from fheat.data.orientation import reorient
from fheat.data.read import read_image, read_label
from fheat.experiments.inside import scored_network
from fheat.experiments.items import scores
from fheat.experiments.items.presented import Presented, scored_on
from fheat.experiments.plan import Plan, scored_cases
from fheat.experiments.records import Item
from fheat.experiments.results import RowResult
from fheat.figures.cases import ComparedCase, panels_picture
from fheat.figures.picture import Picture
from fheat.inference.predictor import Predictor
from fheat.inference.windows import Windows
from fheat.io.nifti import read_nifti, write_nifti
from fheat.system.errors import BadInput

SCANS = 3
"""Number of scans that are shown, the first ones."""


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of all rows, and the figure of those that are done."""
    scored = scores.present(item, results, plan)
    done = [result for result in results if result.outcomes]
    pictures = (planes_picture(item, done, plan),) if done else ()
    return Presented(scored.sheets, scored.numbers, pictures, scored.notes)


def planes_picture(item: Item, done: Sequence[RowResult], plan: Plan) -> Picture:
    """Return the figure with a row for each scan, and a column for the network of the first seed of each row."""
    _, cases = scored_cases(plan.data[done[0].plan.row.dataset])
    masks = {result.plan.row.title: segmented(result, cases[:SCANS], plan) for result in done}
    compared = [_compared(case, {title: files[case.id] for title, files in masks.items()}) for case in cases[:SCANS]]
    return panels_picture(compared, item.name, words=scored_on(done))


def segmented(result: RowResult, cases: Sequence[Case], plan: Plan) -> dict[str, Path]:
    """Return the masks of scans by the network of the first seed, as files in the folder of its run; made once."""
    model = scored_network(result, plan)
    files = {case.id: model.parent / "masks" / f"{case.id}.nii.gz" for case in cases}
    missing = [case for case in cases if not files[case.id].is_file()]
    if missing:
        run = result.plan.runs[0]
        windows = Windows(run.settings.data.patch_size, run.scoring.stride or run.settings.data.patch_size)
        predictor = Predictor(
            model, windows=windows, largest_component=run.scoring.largest_component, device=plan.device
        )
        for case in missing:
            write_nifti(predictor.segment(read_image(case)), files[case.id])
    return files


def _compared(case: Case, masks: dict[str, Path]) -> ComparedCase:
    """Return a scan with its reference and masks, upright; all classes together are the foreground."""
    image = read_image(case)
    label = read_label(case, image)
    if label is None:
        raise BadInput(case.images[0], "has no label to compare with", "leave it out of the split")
    upright = reorient(image, "RAS")
    inside = {title: reorient(read_nifti(file), "RAS").data > 0 for title, file in masks.items()}
    reference = reorient(label, "RAS").data > 0
    return ComparedCase(case.id, np.asarray(upright.data), reference, inside, upright.spacing)
