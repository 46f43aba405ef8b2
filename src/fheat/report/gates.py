"""The gates of a run on its page: the outcome in a sentence, and the sections on allocation, iterations and probes."""

from collections.abc import Sequence
from math import isfinite, pi

from fheat.figures.page import PageSection, paragraph, row, table
from fheat.figures.plots import Mark
from fheat.gates.table import Allocation, closing_text
from fheat.report.curves import orders, response, responses, strengths
from fheat.studies.pairing import attenuation_figure, pairing_figure, pairing_table, prediction_sentence
from fheat.studies.perturbation import gates_after, outcome_sentence, validation_sentence
from fheat.system.text import MOST_LISTED, grid_name, some_of
from fheat.training.runs import RunHistory

_KNOWN_AS = {("fheat_seg", "dec1"): "Block_Final (dec1)"}
"""Names that the paper gives to gates of a network."""
_GATE = (
    "A gate mixes the features of its stage over the whole crop, as heat spreads: of a wave with frequency radius r it "
    "keeps the share exp(-(D r)^alpha). D is its strength, alpha its order, and tau = D^alpha. At D = 0 it lets "
    "everything pass unchanged: the gate is closed, and training does not open it again. To retire a closed gate is to "
    "take it out of the network, which changes no bit of the output and saves its multiply-adds."
)
_PAIRING = (
    "The pairing P of a gate says what opening it a little would do to the loss: with P > 0 the loss falls, with P < 0 "
    "it rises. It is measured with all gates closed, and with that gate alone closed."
)


def summary(history: RunHistory, saving: tuple[str, float] | None = None, idle: Sequence[str] = ()) -> str:
    """Return the outcome of a run in one sentence.

    `saving` is the name of the saved network and the share of its multiply-adds that retiring its closed gates saves;
    `idle` are the sites of gates that have nothing to mix.
    """
    parts = [_gates_in_words(history, idle)] if history.sites else [f"{history.settings.network.name} has no gates"]
    if saving is not None and history.sites:
        whose = "the closed ones" if saving[0] == "final" else f"those closed in {saving[0]}"
        parts.append(f"retiring {whose} saves {saving[1]:.1%} of the multiply-adds")
    if history.validations:
        best, last = max(each.mean for each in history.validations), history.validations[-1].mean
        parts.append(
            f"validation Dice {best:.4f} at best, {last:.4f} at iteration {history.validations[-1].iteration:,}"
        )
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def allocation_section(history: RunHistory, gates: Allocation, where: str) -> PageSection:
    """Return the section on the state of every gate: a paragraph and a table. `where` says what it was read from."""
    if not gates:
        return PageSection("Allocation", paragraph(f"{history.settings.network.name} has no gates."))
    words = f"{len(gates) - len(gates.open)} of {len(gates)} gates are closed"
    words += f"; open: {', '.join(some_of(gates.open))}." if gates.open else "; none is open."
    head = ("site", "state", "closed at", "D", "alpha", "tau", "grid", "channels", "multiply-adds")
    rows = []
    for gate in gates:
        at = history.closed_at(gate.site) if gate.site in history.sites else None
        rows.append(
            (
                gate.site,
                gate.state,
                "" if at is None else f"{at:,}" if at else "the beginning",
                *(f"{value:.4f}" if value else "0" for value in (gate.D, gate.alpha, gate.tau)),
                "" if gate.grid is None else grid_name(gate.grid),
                "" if gate.channels is None else str(gate.channels),
                "" if gate.macs is None else f"{gate.macs:,}",
            )
        )
    body = [f"{words} Read from {where}.", *_closing_order(history)]
    mixing = [gates[site] for site in gates.open if site not in gates.idle]
    if mixing:
        passes = _listed([f"{gate.site} {response(gate.D, gate.alpha, pi):.1%}" for gate in mixing])
        body.append(f"Of a wave at frequency radius pi, the open gates let pass: {passes}.")
    if gates.idle:
        body.append(f"Nothing to mix, because the grid is a single voxel: {_listed(gates.idle)}.")
    explained = paragraph(_GATE) + paragraph(" ".join(body))
    return PageSection("Allocation", explained + table(*_without_empty(head, rows)))


def gates_sections(history: RunHistory, gates: Allocation, marks: Sequence[Mark]) -> list[PageSection]:
    """Return the sections on the gates over the iterations, after each perturbation, and in the probes, if any."""
    if not history.sites:
        return []
    drawn = row(strengths(history, marks), orders(history, marks), responses(gates))
    sections = [PageSection("Gates", drawn), *(perturbation_section(history, mark) for mark in marks)]
    return [*sections, probes_section(history, marks)] if history.probes else sections


def perturbation_section(history: RunHistory, mark: Mark) -> PageSection:
    """Return the section on what happened to the gates and to the validation Dice after a perturbation."""
    iteration, label = mark
    title = f"Perturbed after iteration {iteration:,}: {label}"
    gates = gates_after(history, iteration)
    if not gates:
        return PageSection(title, paragraph("The run has not come that far."))
    head = ("site", "D before", "right after", "at the end", "outcome")
    rows = [(gate.site, *map(_strength, (gate.before, gate.right_after, gate.end)), gate.outcome) for gate in gates]
    words = f"{outcome_sentence(gates)} {validation_sentence(history, iteration)}"
    return PageSection(title, paragraph(words) + table(head, rows))


def probes_section(history: RunHistory, marks: Sequence[Mark] = ()) -> PageSection:
    """Return the section on the probes of a run, of which there is at least one."""
    drawn = row(pairing_figure(history, marks), attenuation_figure(history, marks))
    words = paragraph(_PAIRING) + paragraph(prediction_sentence(history))
    return PageSection("Probes", words + drawn + pairing_table(history))


def _gates_in_words(history: RunHistory, idle: Sequence[str]) -> str:
    count, survivors = len(history.sites), history.survivors
    closed = count - len(survivors)
    words = (
        f"{closed or 'none'} of {count} gates closed for good" if survivors else f"all {count} gates closed for good"
    )
    if len(survivors) == count:  # all are open, so there is nothing to list
        return words
    mixing = [site for site in survivors if site not in idle]
    kept = [
        f"{_KNOWN_AS.get((history.settings.network.name, site), site)} kept D = {history.steps[-1][f'D.{site}']:.4f}"
        for site in mixing
    ]
    open_and_idle = set(survivors) & set(idle)
    verb = "has" if len(open_and_idle) == 1 else "have"
    words += f", {len(open_and_idle)} {verb} nothing to mix" if open_and_idle else ""
    if len(kept) > MOST_LISTED:
        values = [history.steps[-1][f"D.{site}"] for site in mixing]
        return f"{words}; {len(kept)} kept D from {min(values):.4f} to {max(values):.4f}"
    return f"{words}; {_listed([kept[0], *(each.replace(' kept D', ' D') for each in kept[1:])])}" if kept else words


def _closing_order(history: RunHistory) -> list[str]:
    """Return a sentence with the order in which gates closed for good, if any did."""
    closed = sorted((at, site) for site in history.sites if (at := history.closed_at(site)) is not None)
    if not closed:
        return []
    return [f"Closed for good, in this order: {_listed([f'{site} {closing_text(at)}' for at, site in closed])}."]


def _without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without its empty columns, such as the grids where only the log is known."""
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return [head[column] for column in kept], [[row[column] for column in kept] for row in rows]


def _listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`; of many words some, and how many more there are."""
    *others, last = some_of(words)
    return f"{', '.join(others)} and {last}" if others else last


def _strength(value: float) -> str:
    return "0" if value == 0 else f"{value:.4f}" if isfinite(value) else ""
