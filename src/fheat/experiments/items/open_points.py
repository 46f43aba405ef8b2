"""Section V: does an unbounded alpha pass 0.9, does the loss pull alpha against its bound, and do gates matter?"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from fheat.experiments.items import scores
from fheat.experiments.items.presented import Presented
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.row_result import RowResult
from fheat.experiments.sheet import Number, Sheet
from fheat.metrics.statistics import MeanAndDeviation
from fheat.studies.order_gradient import OrderGradient, measure_order_gradients
from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, read_capped, write_file

STORED = "order-gradients.json"
BATCHES = 16
"""Number of batches of two crops that the gradient is averaged over."""
NOTES = (
    "dL/dalpha is that of the supervised loss on crops of the labelled training scans, at the alpha training left; "
    "negative: the loss falls as alpha rises. At the upper bound of 0.9 that is what the paper calls a KKT point.",
    "A bounded alpha stays below 0.9; an unbounded one above it says that the bound was what stopped it.",
)


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of the rows, and alpha with its gradient at every open gate, run by run."""
    scored = scores.present(item, results, plan)
    rows: list[tuple[str, ...]] = []
    numbers: list[Number] = []
    for result in results:
        for seed in result.outcomes:
            for gradient in _gradients(result, plan, seed):
                rows.append((result.plan.row.title, str(seed), *_cells(gradient)))
                facts = result.iterations, result.scans, result.state
                for name, mean, error in (
                    ("alpha", gradient.alpha, None),
                    ("dL/dalpha", gradient.mean, gradient.error),
                ):
                    ours = MeanAndDeviation(mean, error, gradient.batches)
                    quantity = f"{name} of {gradient.site}, seed {seed}"
                    numbers.append(Number(result.name, quantity, None, ours, *facts))
    head = ("row", "seed", "open gate", "D", "alpha", "dL/dalpha", "standard error", "the loss wants alpha")
    sheets = (*scored.sheets, *([Sheet("Orders of the open gates", head, tuple(rows))] if rows else []))
    return Presented(sheets, (*scored.numbers, *numbers), scored.pictures, (*scored.notes, *NOTES))


def _gradients(result: RowResult, plan: Plan, seed: int) -> list[OrderGradient]:
    """Return the gradient at the open gates of the final network, measured once and stored in the folder of its run."""
    if not result.outcomes[seed].survivors:
        return []
    run = result.plan.runs[result.plan.seeds.index(seed)]
    folder = run.folder(plan.runs)
    stored = folder / STORED
    if not stored.is_file():
        batches = BATCHES if plan.tiny is None else 2
        found = measure_order_gradients(folder / "final", run.settings, batches=batches, device=plan.device)
        write_file(stored, (json.dumps([asdict(one) for one in found], indent=1) + "\n").encode())
    try:
        return [OrderGradient(**one) for one in json.loads(read_capped(stored, TABLE_LIMIT))]
    except (ValueError, TypeError) as error:
        raise BadInput(stored, f"is not what was measured ({error})", "delete it, and it is measured again") from None


def _cells(gradient: OrderGradient) -> tuple[str, ...]:
    certain = abs(gradient.mean) > 2 * (gradient.error or 0)
    wish = "unclear" if not certain else "higher" if gradient.mean < 0 else "lower"
    error = "-" if gradient.error is None else f"{gradient.error:.2e}"
    return gradient.site, f"{gradient.D:.3f}", f"{gradient.alpha:.4f}", f"{gradient.mean:+.2e}", error, wish
