"""Fig. 2: the architecture of FHEAT-Seg, drawn from the network itself."""

from collections.abc import Sequence

from fheat.experiments.items.presented import Presented, notes_on, published_sheet
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.results import RowResult
from fheat.experiments.tables import Number
from fheat.figures.architecture import architecture_picture
from fheat.gates.architecture import architecture
from fheat.metrics.statistics import moments
from fheat.networks.registry import create_model
from fheat.ops.gates import gates_of

NETWORK = "fheat_seg"


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the drawing, and the counts that the paper states about it."""
    model = create_model(NETWORK)
    drawn = architecture(model)
    ours = {"parameters, M": drawn.parameters / 1e6, "gates": len(gates_of(model)), "levels": len(drawn.levels)}
    numbers = tuple(Number("", name, value, moments([ours[name]])) for name, value in item.published.items())
    picture = architecture_picture(drawn, item.name)
    return Presented((published_sheet(item, numbers),), numbers, (picture,), tuple(notes_on(item, results, plan)))
