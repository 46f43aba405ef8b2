"""How an item becomes tables and figures, by its kind."""

from collections.abc import Callable, Sequence
from typing import Final

from fheat.experiments.items import allocation, attention, dynamics, open_points, score_figures, scores, untrained
from fheat.experiments.items.presented import Presented
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item, Kind
from fheat.experiments.row_result import RowResult

_PRESENT: Final[dict[Kind, Callable[[Item, Sequence[RowResult], Plan], Presented]]] = {
    "scores": scores.present,
    "allocation": allocation.present,
    "tradeoff": score_figures.present_tradeoff,
    "diagram": untrained.present_diagram,
    "simulation": untrained.present_simulation,
    "port": dynamics.present_port,
    "dynamics": dynamics.present_dynamics,
    "attention": attention.present,
    "contrast": untrained.present_contrast,
    "planes": score_figures.present_planes,
    "open points": open_points.present,
}


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the tables and figures of an item; rows that are not done are shown without numbers of ours."""
    return _PRESENT[item.kind](item, results, plan)
