"""Gates on a page: which closed when, what survived, what that saves, and what each does to a frequency."""

from collections.abc import Iterable, Mapping, Sequence
from math import pi
from pathlib import Path
from typing import Any

import numpy as np

from fheat.figures.page import Section, figure, paragraph, table
from fheat.figures.plots import gate_styles, plot, plt
from fheat.gates.table import Allocation
from fheat.training.runs import RunHistory

_RADIUS = np.linspace(0, np.pi * np.sqrt(3), 200)


def save_allocation_figure(table: Allocation, history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw D of every gate over the steps, and its final response exp(-(D r)^alpha), into a PNG.

    A closed gate is the flat line at one. `history` has D by site, before the first step and after every one.
    """
    canvas, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), dpi=120, layout="constrained")
    palette = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(table)))
    for colour, row in zip(palette, table, strict=True):
        left.plot([strengths[row.site] for strengths in history], color=colour, linestyle="--" if row.D == 0 else "-")
    _draw_responses(right, table, palette)
    left.set(xlabel="optimiser step", ylabel="strength D", title="training moves the gates")
    right.set(title="what each gate does")
    canvas.savefig(path)
    plt.close(canvas)


def responses(table: Allocation) -> str:
    """Return the figure of the response of every gate, exp(-(D r)^alpha)."""
    kept = [f"{row.site} keeps {response(row.D, row.alpha, np.pi):.1%}" for row in table if row.D > 0]
    caption = "Learned response exp(-(D r)^alpha) of every gate over the frequency radius r. "
    caption += f"At r = pi {', '.join(kept)}; a closed gate keeps everything." if kept else "Every gate is closed."
    with plot("responses", caption) as drawing:
        for site, style in gate_styles([row.site for row in table], table.open).items():
            values = [response(table[site].D, table[site].alpha, radius) for radius in _RADIUS]
            drawing.axes.plot(_RADIUS, values, **style)
        drawing.axes.set(xlabel="frequency radius r", ylabel="response", ylim=(0, 1.05))
        drawing.legend()
    return figure(drawing.svg, caption)


def response(strength: float, alpha: float, radius: float) -> float:
    """Return exp(-(D r)^alpha); one where D is 0."""
    return float(np.exp(-((strength * radius) ** alpha)))


def _draw_responses(axes: Any, table: Allocation, palette: Iterable[Any]) -> None:
    for colour, row in zip(palette, table, strict=True):
        closed = row.D == 0
        label = f"{row.site}{' (closed)' if closed else ''}"
        values = [response(row.D, row.alpha, radius) for radius in _RADIUS]
        axes.plot(_RADIUS, values, color=colour, linestyle="--" if closed else "-", label=label)
    axes.set(xlabel="frequency radius r", ylabel="response", ylim=(0, 1.05))
    axes.legend(fontsize=8, ncols=2)


_KNOWN_AS = {("fheat_seg", "dec1"): "Block_Final (dec1)"}
"""What the paper calls a gate of a network."""


def summary(record: RunHistory, saving: tuple[str, float] | None = None, idle: Sequence[str] = ()) -> str:
    """Return the outcome in a sentence; `saving` is the name of a saved network and the part of its multiply-adds that
    retiring its closed gates takes, `idle` the gates that have nothing to mix."""
    parts = [_gates_in_words(record, idle)] if record.sites else [f"{record.settings.network.name} has no gates"]
    if saving is not None and record.sites:
        whose = "the closed ones" if saving[0] == "final" else f"those closed in {saving[0]}"
        parts.append(f"retiring {whose} saves {saving[1]:.1%} of the multiply-adds")
    if record.validations:
        best, last = max(found.mean for found in record.validations), record.validations[-1].mean
        parts.append(
            f"validation Dice {best:.4f} at best, {last:.4f} at iteration {record.validations[-1].iteration:,}"
        )
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def allocation_section(record: RunHistory, gates: Allocation, where: str) -> Section:
    """Return what became of every gate, survivors first in words, then gate by gate; `where` it was read."""
    if not gates:
        return Section("Allocation", paragraph(f"{record.settings.network.name} has no gates."))
    words = f"{len(gates) - len(gates.open)} of {len(gates)} gates are closed"
    words += f"; open: {', '.join(gates.open)}." if gates.open else "; none is open."
    head = ("site", "state", "closed at", "D", "alpha", "tau", "grid", "channels", "multiply-adds")
    rows = []
    for gate in gates:
        at = record.closed_at(gate.site) if gate.site in record.sites else None
        rows.append(
            (
                gate.site,
                gate.state,
                "" if at is None else f"{at:,}",
                *(f"{value:.4f}" if value else "0" for value in (gate.D, gate.alpha, gate.tau)),
                "" if gate.grid is None else "x".join(map(str, gate.grid)),
                "" if gate.channels is None else str(gate.channels),
                "" if gate.macs is None else f"{gate.macs:,}",
            )
        )
    body = [f"{words} Read from {where}.", *_closings(record)]
    mixing = [gates[site] for site in gates.open if site not in gates.idle]
    if mixing:
        passes = _listed([f"{gate.site} {response(gate.D, gate.alpha, pi):.1%}" for gate in mixing])
        body.append(f"Of a wave at frequency radius pi, the open gates let pass: {passes}.")
    if gates.idle:
        body.append(f"Nothing to mix, because the grid is a single voxel: {_listed(gates.idle)}.")
    return Section("Allocation", paragraph(" ".join(body)) + table(*_without_empty(head, rows)))


def _gates_in_words(record: RunHistory, idle: Sequence[str]) -> str:
    count, survivors = len(record.sites), record.survivors
    closed = count - len(survivors)
    words = (
        f"{closed or 'none'} of {count} gates closed for good" if survivors else f"all {count} gates closed for good"
    )
    if len(survivors) == count:  # nothing to tell apart yet
        return words
    kept = [
        f"{_KNOWN_AS.get((record.settings.network.name, site), site)} kept D = {record.steps[-1][f'D.{site}']:.4f}"
        for site in survivors
        if site not in idle
    ]
    words += f", {len(set(survivors) & set(idle))} have nothing to mix" if set(survivors) & set(idle) else ""
    return f"{words}; {_listed([kept[0], *(one.replace(' kept D', ' D') for one in kept[1:])])}" if kept else words


def _closings(record: RunHistory) -> list[str]:
    """Say in which order the gates closed for good, if any did."""
    closed = sorted((at, site) for site in record.sites if (at := record.closed_at(site)) is not None)
    if not closed:
        return []
    return [f"Closed for good, in this order: {_listed([f'{site} at iteration {at:,}' for at, site in closed])}."]


def _without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Leave out the columns that say nothing: a log does not know the grids."""
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return [head[column] for column in kept], [[row[column] for column in kept] for row in rows]


def _listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
