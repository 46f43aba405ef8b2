"""Fig. 1: Dice against the number of parameters, ours and published."""

from collections.abc import Sequence

from fheat.experiments.items import scores
from fheat.experiments.items.presented import Presented, scored_on
from fheat.experiments.plan import Plan, missing_parts
from fheat.experiments.records import Item, Row
from fheat.experiments.results import RowResult
from fheat.figures.tradeoff import MethodScore, tradeoff_picture
from fheat.gates.cost import parameters
from fheat.networks.registry import create_model


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of all rows, and the figure of those whose network exists."""
    scored = scores.present(item, results, plan)
    counts = {
        result.name: network_parameters(result.plan.row)
        for result in results
        if not missing_parts(result.plan.row.network)
    }
    shown: list[MethodScore] = []
    for result in results:
        row = result.plan.row
        if result.name in counts:
            published, ours = row.published["dice"], result.score("dice")
            sd = None if published.sd is None else published.sd / 100
            shown.append(MethodScore(row.title, counts[result.name], published.mean / 100, sd, published=True))
            if ours.mean is not None:
                sd = None if ours.sd is None else ours.sd / 100
                shown.append(MethodScore(row.title, counts[result.name], ours.mean / 100, sd))
    words = " ".join(filter(None, ("All parameters are counted here.", item.note, scored_on(results))))
    picture = tradeoff_picture(shown, item.name, words=words)
    return Presented(scored.sheets, scored.numbers, (picture,), scored.notes)


def network_parameters(row: Row) -> int:
    """Return the number of parameters of a row's network for one channel and two classes, at the window of LA."""
    options = {
        name.removeprefix("network."): value for name, value in row.options.items() if name.startswith("network.")
    }
    return parameters(create_model(row.network, **options))
