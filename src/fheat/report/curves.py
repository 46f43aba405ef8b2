"""Losses, validation and gates over the iterations of a run, each with a caption in numbers."""

from collections.abc import Sequence
from math import ceil, floor, isfinite
from statistics import fmean

from fheat.figures.page import figure
from fheat.figures.plots import Mark, colours, draw_marks, gate_styles, plain, plot
from fheat.figures.theme import QUIET
from fheat.training.runs import RunHistory

_POINTS = 600
"""At most so many in a line of losses: more are a smear, and make a large page."""


def losses(record: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of every loss."""
    first = record.losses[0]
    values = record.column(first)
    caption = (
        f"Losses. The one that is minimised, {first}, was {values[0]:.4f} at iteration {record.iterations[0]:,} "
        f"and is {values[-1]:.4f} at iteration {record.iterations[-1]:,}"
    )
    others = [f"{name} {record.column(name)[-1]:.4f}" for name in record.losses[1:]]
    caption += f"; the others are at {', '.join(others)}." if others else "."
    size = ceil(len(values) / _POINTS)
    caption += f" Drawn as means of {size} logged iterations." if size > 1 else ""
    with plot("losses", caption) as drawing:
        for order, (colour, name) in enumerate(zip(colours(len(record.losses)), record.losses, strict=True)):
            style = {"color": colour, "linewidth": 1, "zorder": 3 - order / len(record.losses)}
            drawing.axes.plot(means(record.iterations, size), means(record.column(name), size), label=name, **style)
        drawing.axes.set(xlabel="iteration", ylabel="value")
        if all(value > 0 for value in values):
            drawing.axes.set_yscale("log", nonpositive="mask")
            drawing.axes.yaxis.set_major_formatter(plain)
            drawing.axes.yaxis.set_minor_formatter("")
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def means(values: Sequence[float], size: int) -> list[float]:
    """Return the mean of every `size` values in turn, the last of what is left; the values themselves for 1."""
    return [fmean(values[start : start + size]) for start in range(0, len(values), size)]


def validation(record: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of the validation Dice, mean and scan by scan."""
    best = max(record.validations, key=lambda found: found.mean)
    last = record.validations[-1]
    count = f"{len(last.cases)} scan{'s' if len(last.cases) > 1 else ''}"
    caption = (
        f"Validation Dice by full sliding window, mean of {count}, each scan a thin line. Best "
        f"{best.mean:.4f} at iteration {best.iteration:,}; {last.mean:.4f} at iteration {last.iteration:,}."
    )
    at = [found.iteration for found in record.validations]
    worst = min((score for found in record.validations for score in found.cases.values()), default=0.0)
    bottom = max(0.0, floor(10 * worst) / 10) if isfinite(worst) else 0.0
    with plot("validation", caption) as drawing:
        for case in last.cases:
            scores = [found.cases.get(case, float("nan")) for found in record.validations]
            drawing.axes.plot(at, scores, color=QUIET[0], linewidth=0.7, alpha=0.7)
        drawing.axes.plot(at, [found.mean for found in record.validations], marker="o", color=colours(1)[0])
        drawing.axes.set(xlabel="iteration", ylabel="Dice", xlim=(0, 1.02 * record.done), ylim=(bottom, 1))
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)


def strengths(record: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of D of every gate."""
    closed = {site: at for site in record.sites if (at := record.closed_at(site)) is not None}
    open_ = [f"{site} with D = {record.steps[-1][f'D.{site}']:.4f}" for site in record.sites if site not in closed]
    caption = f"Strength D of every gate. {len(closed)} of {len(record.sites)} closed for good"
    caption += ": " + ", ".join(f"{site} at iteration {at:,}" for site, at in closed.items()) if closed else ""
    caption += f". Open: {', '.join(open_)}." if open_ else ". None is open."
    return _over_iterations(record, "D", "strength D", caption, marks)


def orders(record: RunHistory, marks: Sequence[Mark] = ()) -> str:
    """Return the figure of alpha of every gate."""
    values = [f"{site} {record.steps[-1][f'alpha.{site}']:.4f}" for site in record.sites]
    caption = (
        f"Order alpha of every gate; at iteration {record.iterations[-1]:,}: {', '.join(values)}. That of a closed "
        "gate has no effect."
    )
    return _over_iterations(record, "alpha", "order alpha", caption, marks)


def _over_iterations(record: RunHistory, what: str, label: str, caption: str, marks: Sequence[Mark]) -> str:
    """Draw D or alpha; a cross on the axis is where a gate closed for good."""
    with plot(what, caption) as drawing:
        for site, style in gate_styles(record.sites, record.survivors).items():
            values = [value if isfinite(value) else float("nan") for value in record.column(f"{what}.{site}")]
            drawing.axes.plot(record.iterations, values, **style)
            if what == "D" and (at := record.closed_at(site)) is not None:
                drawing.axes.plot([at], [0], "x", color=style["color"], zorder=4, clip_on=False)
        drawing.axes.set(xlabel="iteration", ylabel=label)
        drawing.legend()
        draw_marks(drawing.axes, marks)
    return figure(drawing.svg, caption)
