"""Pictures of the gates: how their strengths moved, and what each does to a frequency."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fheat.allocation.table import Allocation
from fheat.report.canvas import plt
from fheat.report.page import figure
from fheat.report.plots import gate_styles, plot

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
