"""Fig. 4: the gates of another network over training, and its scores with and without them."""

from collections.abc import Sequence

from fheat.experiments.inside import scored_network
from fheat.experiments.items import scores
from fheat.experiments.items.presented import Presented, published_sheet
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.results import RowResult
from fheat.experiments.tables import NOTHING, Number
from fheat.figures.picture import Picture
from fheat.figures.strengths import strengths_picture
from fheat.metrics.statistics import MeanAndDeviation, moments
from fheat.training.runs import RunHistory, read_history


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of both networks, the survivors beside the published one, and the figure of D."""
    scored = scores.present(item, results, plan)
    ported = next((result for result in results if result.plan.row.system == item.reference), None)
    pictures: list[Picture] = list(scored.pictures)
    ours: dict[str, MeanAndDeviation] = {}
    if ported is not None and ported.outcomes:
        log = read_history(scored_network(ported, plan).parent)
        left = sorted(log.steps[-1][f"D.{site}"] for site in log.survivors)
        ours = {"survivors": moments([len(left)]), "D of the survivor": moments(left[-1:])}
        pictures.append(strengths_picture(strengths(log), f"{item.name}-D", words=item.note))
    facts = ("", "", "not run yet") if ported is None else (ported.iterations, ported.scans, ported.state)
    numbers = [Number("", name, value, ours.get(name, NOTHING), *facts) for name, value in item.published.items()]
    sheets = (*scored.sheets, published_sheet(item, numbers))
    return Presented(sheets, (*scored.numbers, *numbers), tuple(pictures), scored.notes)


def strengths(log: RunHistory) -> dict[int, dict[str, float]]:
    """Return D of every gate by iteration."""
    return {int(step["iteration"]): {site: step[f"D.{site}"] for site in log.sites} for step in log.steps}
