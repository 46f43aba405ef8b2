"""Figures of a run: losses, validation Dice and gates over the iterations, and the responses of gates over frequency.

Every caption states the numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fheat.figures.page import QUIET, figure
from fheat.figures.plots import Mark, colours, draw_marks, gate_styles, plain, plot, plt
from fheat.figures.strengths import closing_words, draw_closings, draw_gates
from fheat.gates.table import Allocation
from fheat.system.text import some_of
from fheat.training.runs import RunHistory

_MOST_POINTS = 600
"""Largest number of points in a line of losses: more points cannot be told apart and make a large page."""
_RADIUS = np.linspace(0, np.pi * np.sqrt(3), 200)
"""Frequency radii at which the response of a gate is drawn."""


def losses(history: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of all losses."""
    first = history.losses[0]
    values = history.column(first)
    caption = (
        f"Losses. The one that is minimised, {first}, was {values[0]:.4f} at iteration {history.iterations[0]:,} "
        f"and is {values[-1]:.4f} at iteration {history.iterations[-1]:,}"
    )
    others = [f"{name} {history.column(name)[-1]:.4f}" for name in history.losses[1:]]
    caption += f"; the others are at {', '.join(others)}." if others else "."
    size = ceil(len(values) / _MOST_POINTS)
    caption += f" Drawn as means of {size} logged iterations." if size > 1 else ""
    with plot("losses", caption) as drawing:
        for order, (colour, name) in enumerate(zip(colours(len(history.losses)), history.losses, strict=True)):
            style = {"color": colour, "linewidth": 1, "zorder": 3 - order / len(history.losses)}
            drawing.axes.plot(means(history.iterations, size), means(history.column(name), size), label=name, **style)
        drawing.axes.set(xlabel="iteration", ylabel="value")
        if all(value > 0 for value in values):
            drawing.axes.set_yscale("log", nonpositive="mask")
            drawing.axes.yaxis.set_major_formatter(plain)
            drawing.axes.yaxis.set_minor_formatter("")
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def means(values: Sequence[float], size: int) -> list[float]:
    """Return the means of consecutive groups of `size` values, the last group of the rest; for 1 the values."""
    return [fmean(values[start : start + size]) for start in range(0, len(values), size)]


def validation(history: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of the validation Dice, mean and scan by scan."""
    best = max(history.validations, key=lambda each: each.mean)
    last = history.validations[-1]
    count = f"{len(last.cases)} scan{'s' if len(last.cases) > 1 else ''}"
    caption = (
        f"Validation Dice by full sliding window, mean of {count}, each scan a thin line. Best "
        f"{best.mean:.4f} at iteration {best.iteration:,}; {last.mean:.4f} at iteration {last.iteration:,}."
    )
    iterations = [each.iteration for each in history.validations]
    worst = min((score for each in history.validations for score in each.cases.values()), default=0.0)
    bottom = max(0.0, floor(10 * worst) / 10) if isfinite(worst) else 0.0
    with plot("validation", caption) as drawing:
        for case in last.cases:
            scores = [each.cases.get(case, float("nan")) for each in history.validations]
            drawing.axes.plot(iterations, scores, color=QUIET[0], linewidth=0.7, alpha=0.7)
        drawing.axes.plot(iterations, [each.mean for each in history.validations], marker="o", color=colours(1)[0])
        drawing.axes.set(xlabel="iteration", ylabel="Dice", xlim=(0, 1.02 * history.done), ylim=(bottom, 1))
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def strengths(history: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of D of every gate."""
    caption = closing_words({site: history.column(f"D.{site}") for site in history.sites}, _closings(history))
    return _over_iterations(history, "D", "strength D", caption, marks)


def orders(history: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of alpha of every gate."""
    values = some_of([f"{site} {history.steps[-1][f'alpha.{site}']:.4f}" for site in history.sites])
    caption = (
        f"Order alpha of every gate; at iteration {history.iterations[-1]:,}: {', '.join(values)}. That of a closed "
        "gate has no effect."
    )
    return _over_iterations(history, "alpha", "order alpha", caption, marks)


def _over_iterations(history: RunHistory, what: str, label: str, caption: str, marks: Sequence[Mark]) -> str:
    """Return the figure of D or alpha; a cross on the axis marks where a gate closed for good."""
    values = {site: history.column(f"{what}.{site}") for site in history.sites}
    closed_at = _closings(history)
    with plot(what, caption) as drawing:
        draw_gates(drawing.axes, history.iterations, values, closed_at)
        if what == "D":
            draw_closings(drawing.axes, closed_at.values())
        drawing.axes.set(xlabel="iteration", ylabel=label)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def _closings(history: RunHistory) -> dict[str, int]:
    return {site: at for site in history.sites if (at := history.closed_at(site)) is not None}


def responses(table: Allocation) -> str:
    """Return the figure of the response exp(-(D r)^alpha) of every gate."""
    kept = [f"{row.site} keeps {response(row.D, row.alpha, np.pi):.1%}" for row in table if row.D > 0]
    caption = "Learned response exp(-(D r)^alpha) of every gate over the frequency radius r. "
    caption += (
        f"At r = pi {', '.join(some_of(kept))}; a closed gate keeps everything." if kept else "Every gate is closed."
    )
    with plot("responses", caption) as drawing:
        for site, style in gate_styles([row.site for row in table], table.open).items():
            values = [response(table[site].D, table[site].alpha, radius) for radius in _RADIUS]
            drawing.axes.plot(_RADIUS, values, **style)
        drawing.axes.set(xlabel="frequency radius r", ylabel="response", ylim=(0, 1.05))
        drawing.legend()
    return figure(drawing.svg, caption)


def save_allocation_figure(table: Allocation, history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Write a PNG with D of every gate over the steps, and with its final response exp(-(D r)^alpha).

    The response of a closed gate is the flat line at one. `history` has D by site, before the first step and after
    each of them.
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


def response(strength: float, alpha: float, radius: float) -> float:
    """Return exp(-(D r)^alpha), which is 1 where D is 0."""
    return float(np.exp(-((strength * radius) ** alpha)))


def _draw_responses(axes: Any, table: Allocation, palette: Iterable[Any]) -> None:
    for colour, row in zip(palette, table, strict=True):
        closed = row.D == 0
        label = f"{row.site}{' (closed)' if closed else ''}"
        values = [response(row.D, row.alpha, radius) for radius in _RADIUS]
        axes.plot(_RADIUS, values, color=colour, linestyle="--" if closed else "-", label=label)
    axes.set(xlabel="frequency radius r", ylabel="response", ylim=(0, 1.05))
    axes.legend(fontsize=8, ncols=2)
