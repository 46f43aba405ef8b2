"""The cost columns of Tables IV and V: parameters and multiply-adds of every network by one counter."""

from functools import cache
from typing import Any

from fheat.experiments.records import CostRow, Item, Published, items
from fheat.experiments.row_plan import missing_parts
from fheat.experiments.sheet import Number, Sheet
from fheat.gates.cost import cost
from fheat.metrics.statistics import moments
from fheat.networks.registry import create_model, list_models
from fheat.system.errors import BadInput

QUANTITIES = {"macs": "G multiply-adds, gates closed", "macs_open": "G, gates open", "parameters": "M parameters"}


def counted(row: CostRow) -> dict[str, float] | str:
    """Return the counts of a network in the units of the paper, or the reason why there are none.

    `fourier` is what Fourier transforms would add to `macs`; it is only there for a network that has some.
    """
    if row.outside:
        return row.outside
    if needs := missing_parts(row.network):
        return f"not available yet (needs {needs})"
    return _count(row.network, row.patch_size, tuple(sorted(row.options.items())))


@cache
def _count(network: str, patch_size: tuple[int, ...], options: tuple[tuple[str, Any], ...]) -> dict[str, float] | str:
    try:
        found = cost(create_model(network, patch_size=patch_size, **dict(options)))
    except BadInput as error:  # a network of a package that is not installed
        return str(error)
    counts = {"macs": found.rest / 1e9, "macs_open": found.macs / 1e9, "parameters": found.parameters / 1e6}
    return counts | ({"fourier": found.fourier / 1e9} if found.fourier else {})


def cost_sheet(item: Item) -> Sheet:
    """Return the counts of all networks beside the published ones."""
    head = ["network"]
    for title in QUANTITIES.values():
        head += [title, "paper"]
    rows = []
    for row in item.costs:
        counts = counted(row)
        values = counts if isinstance(counts, dict) else {}
        cells = [row.title]
        for name in QUANTITIES:
            ours, paper = values.get(name), row.published.get(name)  # type: ignore[call-overload]
            cells += [_number(ours), "-" if paper is None else f"{paper:,}"]  # with no more digits than the paper has
        rows.append((*cells, "done" if values else str(counts)))
    grid = "x".join(map(str, item.costs[0].patch_size))
    return Sheet(f"Cost of one window of {grid}", (*head, "state"), tuple(rows))


def cost_rows(patch_size: tuple[int, int, int]) -> list[CostRow]:
    """Return the networks of all published costs for one patch size, then all other registered networks.

    At a size for which nothing was published, the rows have no published numbers.
    """
    known = [row for item in items().values() for row in item.costs]
    unpublished = {"patch_size": patch_size, "published": {}, "reason": ""}
    rows = {row.system: row.model_copy(update=unpublished) for row in known if not missing_parts(row.network)}
    rows |= {row.system: row for row in known if row.patch_size == patch_size}
    named = {row.network for row in rows.values()}
    others = [
        CostRow(system=name, title=name, network=name, patch_size=patch_size, published={})
        for name in list_models()
        if name not in named
    ]
    return [*rows.values(), *others]


def compared(row: CostRow) -> dict[str, Any]:
    """Return our counts of a network, the published ones, and by how many per cent of those ours differ.

    `macs_open` is only there for a network with gates. A network that is not available has a `state` that says why.
    """
    counts = counted(row)
    found: dict[str, Any] = {"name": row.system, "network": row.network, "options": row.options}
    if not isinstance(counts, dict):
        return found | {"published": row.published, "state": counts}
    ours = {name: value for name, value in counts.items() if name != "macs_open" or value != counts["macs"]}
    differs = {name: 100 * (ours[name] / value - 1) for name, value in row.published.items()}
    return found | {"ours": ours, "published": row.published, "differs": differs, "reason": row.reason}


def cost_numbers(item: Item) -> list[Number]:
    """Return the count of every network and quantity."""
    numbers = []
    for row in item.costs:
        counts = counted(row)
        for name, value in row.published.items():
            ours = moments([counts[name]] if isinstance(counts, dict) else [])
            state = "done" if isinstance(counts, dict) else counts
            numbers.append(Number(f"cost/{row.system}", name, Published(value), ours, state=state))
    return numbers


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 10 else f"{value:,.2f}"
