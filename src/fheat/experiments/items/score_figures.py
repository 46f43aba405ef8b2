"""Fig. 1, 8 and 9: the scores of Table II as figures. Dice against parameters, and masks on planes of three scans."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fheat.data.case import Case
from fheat.data.orientation import reorient
from fheat.data.read import read_image, read_label
from fheat.experiments.items import scores
from fheat.experiments.items.inside import scored_network
from fheat.experiments.items.presented import Presented, scored_on
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.row_plan import missing_parts, scored_cases
from fheat.experiments.row_result import RowResult
from fheat.figures.cases import ComparedCase, panels_picture
from fheat.figures.picture import Picture
from fheat.figures.tradeoff import MethodScore, tradeoff_picture
from fheat.gates.cost import parameters
from fheat.inference.predictor import Predictor
from fheat.inference.windows import Windows
from fheat.io import read_volume
from fheat.io.nifti import write_nifti
from fheat.networks.registry import create_model

SCANS = 3
"""Number of scans that are shown, the first ones."""


def present_tradeoff(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of all rows, and Dice against parameters of those whose network exists.

    Parameters are those of a network for one channel and two classes, at the window of LA.
    """
    scored = scores.present(item, results, plan)
    shown: list[MethodScore] = []
    for result in results:
        row = result.plan.row
        if not missing_parts(row.network):
            count = parameters(create_model(row.network, **row.network_options))
            published, ours = row.published["dice"], result.score("dice")
            sd = None if published.sd is None else published.sd / 100
            shown.append(MethodScore(row.title, count, published.mean / 100, sd, published=True))
            if ours.mean is not None:
                sd = None if ours.sd is None else ours.sd / 100
                shown.append(MethodScore(row.title, count, ours.mean / 100, sd))
    words = " ".join(filter(None, ("All parameters are counted here.", item.note, scored_on(results))))
    return Presented(scored.sheets, scored.numbers, (tradeoff_picture(shown, item.name, words=words),), scored.notes)


def present_planes(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of all rows, and the same planes of three scans, segmented by the rows that are done."""
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
    assert label is not None  # see `scored_cases`
    upright = reorient(image, "RAS")
    inside = {title: reorient(read_volume(file), "RAS").data > 0 for title, file in masks.items()}
    reference = reorient(label, "RAS").data > 0
    return ComparedCase(case.id, np.asarray(upright.data), reference, inside, upright.spacing)
