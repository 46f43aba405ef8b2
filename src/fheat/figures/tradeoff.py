"""Dice against the number of parameters: one circle for each method, whose area is its number of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import INK, colours, plain, plot

LARGEST_DIAMETER = 22.0
"""Diameter of the circle of the method with the most parameters, in points."""
_LOGARITHMIC_FROM = 8.0
"""Ratio of the most to the fewest parameters from which their axis is logarithmic."""
_FONT, _GAP = 8.5, 3.0
"""Size of a label and its distance from its circle, in points."""

Rectangle = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


@dataclass(frozen=True)
class MethodScore:
    """The Dice of a method, from 0 to 1, and the number of parameters of its network."""

    name: str
    parameters: int
    dice: float
    sd: float | None = None
    """Standard deviation over seeds; None for a single run."""
    published: bool = False
    """Whether the Dice is taken from a publication; otherwise it was measured here."""


def tradeoff_picture(scores: Sequence[MethodScore], name: str = "tradeoff", *, words: str = "") -> Picture:
    """Return the figure of Dice against parameters.

    Args:
        scores: the methods. One that is there twice, published and measured here, has one colour.
        name: name of the file, unique in a page.
        words: sentences to put after the caption, such as dataset and number of labels.

    Circles of published values are hollow, those of values measured here are filled. The area of a circle is
    proportional to the parameters, and an error bar is one standard deviation over seeds.
    """
    _check(scores)
    colour_of = dict(zip(dict.fromkeys(score.name for score in scores), colours(len(scores)), strict=False))
    caption = " ".join(filter(None, (_caption(scores), words)))
    with plot(name, caption, size=(6.4, 4.0)) as drawing:
        axes = drawing.axes
        millions = [score.parameters / 1e6 for score in scores]
        if max(millions) > _LOGARITHMIC_FROM * min(millions):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(plain)
            axes.xaxis.set_minor_formatter("")
        for score, x, diameter in zip(scores, millions, diameters(scores), strict=True):
            colour = colour_of[score.name]
            deviation = None if score.sd is None else 100 * score.sd
            axes.errorbar(x, 100 * score.dice, deviation, color=colour, capsize=3, linewidth=1, zorder=2)
            axes.scatter(
                x, 100 * score.dice, diameter**2, edgecolors=colour, linewidths=1.4, zorder=3, alpha=0.85,
                facecolors="none" if score.published else colour,
            )  # fmt: skip
        axes.set(xlabel="parameters, millions", ylabel="Dice, %")
        axes.margins(x=0.25, y=0.15)
        _draw_key(drawing, scores)
        _draw_labels(axes, scores)
    return svg_picture(name, drawing.svg, caption)


def diameters(scores: Sequence[MethodScore]) -> list[float]:
    """Return the diameter of each circle in points: proportional to the root of its parameters."""
    most = max(score.parameters for score in scores)
    return [LARGEST_DIAMETER * (score.parameters / most) ** 0.5 for score in scores]


def _check(scores: Sequence[MethodScore]) -> None:
    if not scores:
        raise ValueError("scores is empty: give one method at least")
    for score in scores:
        if not 0 <= score.dice <= 1:
            raise ValueError(f"dice={score.dice!r} of {score.name} is not in 0 to 1: divide a percentage by 100")
        if score.parameters < 1:
            raise ValueError(f"parameters={score.parameters!r} of {score.name} is not a count: use 1 or more")
        if score.sd is not None and not (isfinite(score.sd) and 0 <= score.sd <= 1):
            raise ValueError(f"sd={score.sd!r} of {score.name} is not in 0 to 1: use None for a single run")


def _caption(scores: Sequence[MethodScore]) -> str:
    rows = []
    for score in scores:
        deviation = "" if score.sd is None else f" ± {100 * score.sd:.2f}"
        source = "published" if score.published else "measured here"
        rows.append(f"{score.name} {100 * score.dice:.2f}{deviation} % with {score.parameters:,} ({source})")
    return f"Dice against parameters; the area of a circle is the number of parameters. {'; '.join(rows)}."


def _draw_key(drawing: Any, scores: Sequence[MethodScore]) -> None:
    for published, label in ((True, "published"), (False, "measured here")):
        if any(score.published == published for score in scores):
            fill = "none" if published else INK
            drawing.axes.plot([], [], "o", color=INK, markerfacecolor=fill, markersize=7, label=label)
    drawing.legend()


def _draw_labels(axes: Any, scores: Sequence[MethodScore]) -> None:
    """Draw the name of each method beside its circle, where it covers no circle and no other name."""
    axes.figure.draw_without_rendering()  # settles the layout, so that places in points are known
    per_pixel = 72 / axes.figure.dpi
    frame = axes.get_window_extent()
    inside: Rectangle = tuple(side * per_pixel for side in (frame.x0, frame.y0, frame.x1, frame.y1))
    sizes = diameters(scores)
    middles = [
        tuple(axes.transData.transform((score.parameters / 1e6, 100 * score.dice)) * per_pixel) for score in scores
    ]
    taken = [
        (x - size / 2, y - size / 2, x + size / 2, y + size / 2) for (x, y), size in zip(middles, sizes, strict=True)
    ]
    for score, (x, y), size in zip(scores, middles, sizes, strict=True):
        place = free_place(score.name, (x, y), size / 2, taken, inside)
        taken.append(place)
        offset = place[0] - x, (place[1] + place[3]) / 2 - y
        far = abs(offset[1]) > size / 2 + _FONT
        axes.annotate(
            score.name, (score.parameters / 1e6, 100 * score.dice), offset, textcoords="offset points", va="center",
            fontsize=_FONT, in_layout=False, zorder=5,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.5} if far else None,
        )  # fmt: skip


def free_place(
    name: str, middle: tuple[float, float], radius: float, taken: Sequence[Rectangle], inside: Rectangle
) -> Rectangle:
    """Return the rectangle of a label: the nearest place beside, above or below its circle that is free.

    Where all places are taken it is the one on the right, which overlaps.
    """
    x, y = middle
    width, height = 0.62 * _FONT * len(name), 1.25 * _FONT
    lefts = x + radius + _GAP, x - radius - _GAP - width, x - width / 2
    candidates = [(lefts[0], y), (lefts[1], y)]
    for step in range(1, 9):
        up, down = y + radius + _GAP + height * (step - 0.5), y - radius - _GAP - height * (step - 0.5)
        candidates += [(left, where) for where in (up, down) for left in (lefts[2], lefts[0], lefts[1])]
    places = [(left, where - height / 2, left + width, where + height / 2) for left, where in candidates]
    for place in places:
        within = place[0] >= inside[0] and place[1] >= inside[1] and place[2] <= inside[2] and place[3] <= inside[3]
        if within and not any(overlap(place, other) for other in taken):
            return place
    return places[0]


def overlap(one: Rectangle, other: Rectangle) -> bool:
    """Return whether two rectangles have a point inside both."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
