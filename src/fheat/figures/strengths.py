"""Strengths of gates over training: lines, crosses where gates close for good, and bars of what is left at the end."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from fheat.figures.page import QUIET
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import gate_styles, plot
from fheat.gates.table import closed_from, closing_text
from fheat.system.text import some_of


def strengths_picture(
    history: Mapping[int, Mapping[str, float]], name: str = "strengths", *, words: str = ""
) -> Picture:
    """Return the figure of the strength D of all gates, over the iterations on the left and at the end on the right.

    Args:
        history: D by site, by iteration; every iteration has the same sites, whose order is that of the bars.
        name: name of the file, unique in a page.
        words: sentences to put after the caption, such as the network and its Dice.

    A gate at exactly 0 has no bar but a cross and the number 0; every other bar has its value above it.
    """
    iterations = sorted(history)
    if not iterations:
        raise ValueError("history is empty: give D of every gate at one iteration at least")
    sites = list(history[iterations[-1]])
    for iteration in iterations:
        if set(history[iteration]) != set(sites):
            odd = ", ".join(sorted(set(history[iteration]) ^ set(sites)))
            raise ValueError(f"history[{iteration}] and the last iteration differ in the sites {odd}: log every gate")
    values = {site: [float(history[iteration][site]) for iteration in iterations] for site in sites}
    closed_at = _closings(iterations, values)
    caption = " ".join(filter(None, (closing_words(values, closed_at), words)))
    with plot(name, caption, panels=2, size=(9.0, 3.0)) as drawing:
        over, end = drawing.panels
        draw_gates(over, iterations, values, closed_at)
        draw_closings(over, closed_at.values())
        over.set(xlabel="iteration", ylabel="strength D")
        drawing.legend()
        _draw_end(end, {site: each[-1] for site, each in values.items()}, closed_at)
    return svg_picture(name, drawing.svg, caption)


def closing_words(values: Mapping[str, Sequence[float]], closed: Mapping[str, int]) -> str:
    """Return when gates closed for good and how strong the others are at the end, in sentences.

    Args:
        values: strength of every gate over the iterations, by site.
        closed: iteration from which a gate stays closed, by site; the other gates are open at the end.
    """
    open_ = [f"{site} with D = {each[-1]:.4f}" for site, each in values.items() if site not in closed]
    caption = f"Strength D of every gate. {len(closed)} of {len(values)} closed for good"
    words = some_of([f"{site} {closing_text(at)}" for site, at in closed.items()])
    caption += f": {', '.join(words)}" if closed else ""
    return caption + (f". Open: {', '.join(some_of(open_))}." if open_ else ". None is open.")


def draw_gates(
    axes: Any, iterations: Sequence[int], values: Mapping[str, Sequence[float]], closed_at: Mapping[str, int]
) -> None:
    """Draw one line for each gate over the iterations, named if the gate is open at the end.

    Args:
        axes: axes to draw on.
        iterations: numbers of the iterations.
        values: strength or another quantity of every gate, by site; values that are not finite leave a gap.
        closed_at: iteration from which a gate stays closed, by site; the other gates are open at the end.
    """
    survivors = [site for site in values if site not in closed_at]
    for site, style in gate_styles(list(values), survivors).items():
        axes.plot(iterations, [value if isfinite(value) else float("nan") for value in values[site]], **style)


def draw_closings(axes: Any, places: Iterable[int]) -> None:
    """Draw a cross on the axis at every place, such as an iteration at which a gate closed for good."""
    for at in places:
        axes.plot([at], [0], "x", color=QUIET[0], zorder=4, clip_on=False)


def _draw_end(axes: Any, strengths: Mapping[str, float], closed_at: Mapping[str, int]) -> None:
    """Draw a bar for every gate, in order, with its value above it; a closed gate has a cross in the place of a bar."""
    styles = gate_styles(list(strengths), [site for site in strengths if site not in closed_at])
    for place, (site, strength) in enumerate(strengths.items()):
        shown = strength if isfinite(strength) else 0.0
        axes.bar(place, shown, width=0.7, color=styles[site]["color"])
        label = "0" if site in closed_at else f"{strength:.4f}"
        axes.annotate(label, (place, shown), (0, 5), textcoords="offset points", ha="center", fontsize=8)
    draw_closings(axes, [place for place, site in enumerate(strengths) if site in closed_at])
    axes.set_xticks(range(len(strengths)), list(strengths), rotation=90 if len(strengths) > 10 else 0)
    axes.margins(y=0.15)
    axes.set(xlabel="gate", ylabel="strength D at the end")
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")


def _closings(iterations: Sequence[int], values: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """Return the iteration from which each gate stays closed, for the gates that are closed at the end."""
    return {site: at for site, each in values.items() if (at := closed_from(iterations, each)) is not None}
