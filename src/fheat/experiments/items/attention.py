"""Fig. 6: how much of the attention of trained networks lies inside the target, and maps of it."""

from collections.abc import Sequence
from dataclasses import replace

from fheat.experiments.items.inside import inside
from fheat.experiments.items.presented import Presented, notes_on, scored_on
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.row_result import RowResult
from fheat.experiments.sheet import NOTHING, Number, Sheet, with_deviation
from fheat.figures.picture import Picture
from fheat.metrics.statistics import MeanAndDeviation, moments
from fheat.studies.inside.figures import attention_picture, map_pictures
from fheat.studies.inside.record import Analysis, Attention, ModelAnalysis, Plane

QUANTITY = "attention"


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the share of the attention inside the target, row by row, beside chance and the published share."""
    looks = {result.name: _look(result, plan) for result in results if result.outcomes}
    rows, numbers = [], []
    for result in results:
        row = result.plan.row
        found = looks.get(result.name)
        share, chance = (_per_cent(values) for values in (found.shares, found.chances)) if found else (NOTHING, NOTHING)
        published = row.published[QUANTITY]
        cells = (
            with_deviation(share.mean, share.sd, ".1f"),
            with_deviation(*published, ".1f"),
            with_deviation(chance.mean, None, ".1f"),
        )
        rows.append((row.setting, row.title, *cells, result.iterations, result.scans, result.state))
        facts = result.iterations, result.scans, result.state
        numbers.append(Number(result.name, "attention inside the target, %", published, share, *facts))
    head = ("setting", "row", "inside, %", "paper", "of even attention, %", "iterations", "scans", "state")
    pictures = _pictures(item, results, plan)
    notes = (*notes_on(item, results, plan), "Deviations are over scans; the network is that of the first seed.")
    return Presented((Sheet(item.title, head, tuple(rows)),), tuple(numbers), tuple(pictures), notes)


def _look(result: RowResult, plan: Plan) -> Attention:
    analysis, _ = inside(result, plan)
    assert analysis.attention is not None
    return analysis.attention


def _per_cent(values: Sequence[float]) -> MeanAndDeviation:
    return moments([100 * value for value in values])


def _pictures(item: Item, results: Sequence[RowResult], plan: Plan) -> list[Picture]:
    """Return for each setting the shares scan by scan, and for each network its maps."""
    drawn: list[Picture] = []
    for setting in dict.fromkeys(result.plan.row.setting for result in results):
        measured: list[ModelAnalysis] = []
        planes: dict[int, list[Plane]] = {}
        for result in results:
            if result.plan.row.setting == setting and result.outcomes:
                analysis, kept = inside(result, plan)
                planes[len(measured)] = kept
                measured.append(analysis.model_copy(update={"name": f"{result.plan.row.title}, {setting}"}))
        if measured:
            maps = [(model, model.attention) for model in measured if model.attention is not None]
            whole = Analysis(fheat="", dataset=setting, split=setting, models=tuple(measured))
            found = attention_picture(maps), *map_pictures(whole, planes)
            words = scored_on([result for result in results if result.plan.row.setting == setting])
            drawn += [
                replace(one, file=f"{item.name}-{setting}-{one.file}", caption=f"{one.caption} {words}")
                for one in found
            ]
    return drawn
