"""Table I: the gates that training leaves open, with their D and alpha, setting by setting and seed by seed."""

from collections.abc import Sequence

from fheat.experiments.items.presented import Presented, notes_on
from fheat.experiments.plan import Plan
from fheat.experiments.planned import GateOutcome, Outcome
from fheat.experiments.records import Item
from fheat.experiments.row_result import RowResult
from fheat.experiments.sheet import Number, Sheet
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import colours, plot
from fheat.metrics.statistics import moments

FINAL = "dec1"
"""Site of Block_Final, the survivor in the paper."""


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return one line for each seed, the D and alpha of the final block, and a figure of all open gates."""
    numbers = [
        Number(
            result.name,
            f"{quantity} of {FINAL}",
            result.plan.row.published.get(quantity),
            moments([getattr(outcome.gates[FINAL], quantity) for outcome in result.outcomes.values()]),
            result.iterations,
            result.scans,
            result.state,
        )
        for result in results
        for quantity in item.columns
    ]
    drawn = (strength_picture(item, results),) if any(result.outcomes for result in results) else ()
    notes = (*notes_on(item, results, plan), *([_summary(results)] if drawn else []))
    return Presented((_sheet(item, results),), tuple(numbers), drawn, notes)


def open_gates(outcome: Outcome) -> dict[str, GateOutcome]:
    """Return the gates that are open at the end, the one with the largest D first."""
    return dict(sorted(outcome.survivors.items(), key=lambda pair: -pair[1].D))


def _sheet(item: Item, results: Sequence[RowResult]) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for result in results:
        row = result.plan.row
        paper = ("Block_Final", f"{row.published['D'].mean:.3f}", f"{row.published['alpha'].mean:.3f}")
        for seed, outcome in result.outcomes.items():
            gates = open_gates(outcome)
            cells = [", ".join(values) or "-" for values in _columns(gates)]
            closed = f"{len(outcome.gates) - len(gates)} of {len(outcome.gates)}"
            rows.append((row.setting, str(seed), *cells, closed, *paper, result.iterations, "done"))
        if len(result.outcomes) < max(len(result.plan.runs), 1):
            rows.append((row.setting, "-", "-", "-", "-", "-", *paper, result.iterations, result.state))
    head = ("setting", "seed", "open gates", "D", "alpha", "closed", "paper: open", "D", "alpha", "iterations", "state")
    return Sheet(item.title, head, tuple(rows))


def _columns(gates: dict[str, GateOutcome]) -> tuple[list[str], list[str], list[str]]:
    return (
        list(gates),
        [f"{gate.D:.3f}" for gate in gates.values()],
        [f"{gate.alpha:.3f}" for gate in gates.values()],
    )


def _summary(results: Sequence[RowResult]) -> str:
    """Return in how many runs the final block is open, and in how many it is the only open gate."""
    done = [outcome for result in results for outcome in result.outcomes.values()]
    among = sum(FINAL in outcome.survivors for outcome in done)
    alone = sum(list(outcome.survivors) == [FINAL] for outcome in done)
    return f"{FINAL} is Block_Final: open in {among} of {len(done)} runs, alone in {alone} (paper: alone in 15 of 15)."


def strength_picture(item: Item, results: Sequence[RowResult]) -> Picture:
    """Return the figure of D of every open gate, one column for each setting; the published D is a hollow diamond."""
    shown = [result for result in results if result.outcomes]
    words = []
    for result in shown:
        for seed, outcome in result.outcomes.items():
            gates = ", ".join(f"{site} {gate.D:.3f}" for site, gate in open_gates(outcome).items()) or "none"
            words.append(f"{result.plan.row.setting}, seed {seed}: {gates}")
    caption = f"{item.title}: D of every open gate, run by run, and the published one. {'; '.join(words)}."
    sites = list(next(iter(shown[0].outcomes.values())).gates)
    with plot(item.name, caption, size=(6.4, 3.2)) as drawing:
        axes, palette = drawing.axes, dict(zip(sites, colours(len(sites)), strict=True))
        for place, result in enumerate(shown):
            for outcome in result.outcomes.values():
                for site, gate in outcome.survivors.items():
                    axes.plot([place], [gate.D], "o", color=palette[site], alpha=0.8)
            axes.plot([place + 0.15], [result.plan.row.published["D"].mean], "D", color="tab:gray", mfc="none")
        for site in sites:
            axes.plot([], [], "o", color=palette[site], label=site)
        axes.plot([], [], "D", color="tab:gray", mfc="none", label="paper")
        axes.set_xticks(range(len(shown)), [result.plan.row.setting for result in shown])
        axes.set(ylabel="strength D", ylim=(0, None), xlim=(-0.5, len(shown) - 0.5))
        drawing.legend()
    return svg_picture(item.name, drawing.svg, caption)
