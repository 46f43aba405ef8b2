"""Plots with matplotlib, without a screen and with the same bytes every time: SVG in the colours of a page, or PNG."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from io import BytesIO, StringIO
from math import ceil
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fheat.figures.page import PALETTE, QUIET

matplotlib.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["plt"]  # other modules take pyplot from here, where its backend is chosen

Mark = tuple[int, str]
"""An iteration at which a run was perturbed, and the label of the perturbation."""
INK = "#010203"
"""Placeholder for the text colour of the page; no plot uses it for anything else."""
_STYLE: Any = {
    "svg.hashsalt": "fheat",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 9.5,
    "grid.alpha": 0.16,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.1,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
}


_LINES_OF_LEGEND = 3
"""Number of lines of a legend up to which a picture has the height that was asked for."""
_INCHES_OF_LINE = 0.17
_LONGEST_NAME = 30
"""Largest number of characters of a name in a legend, of which two fit beside each other."""
_MOST_NAMED = 16
"""Largest number of gates that a legend names; with more, it would be larger than the plot."""
_STROKES = ("-", (0, (4, 1.2)), (0, (1, 1)))
"""Strokes of lines: gates beyond the number of colours have a colour with another stroke."""


class Plot:
    """Axes to draw on, one for each panel; `svg` has the picture after the `with` block of `plot` has ended."""

    def __init__(self, panels: Sequence[Any]) -> None:
        self.panels = panels
        self.axes = panels[0]
        self.svg = ""

    def legend(self) -> None:
        """Draw the legend above the axes, where it covers no line, with grey lines last."""
        handles, labels = self.axes.get_legend_handles_labels()
        pairs = sorted(zip(handles, labels, strict=True), key=lambda pair: pair[0].get_color() == QUIET[0])
        figure = self.axes.figure
        for columns in range(min(len(pairs), 5), 0, -1):
            legend = figure.legend(*zip(*pairs, strict=True), loc="outside upper left", ncols=columns)
            if columns == 1 or legend.get_window_extent(figure.canvas.get_renderer()).width <= figure.bbox.width:
                break
            legend.remove()
        more = ceil(len(pairs) / columns) - _LINES_OF_LEGEND
        if more > 0:  # the plot keeps its height
            figure.set_figheight(figure.get_figheight() + more * _INCHES_OF_LINE)


@contextmanager
def plot(name: str, words: str, *, panels: int = 1, size: tuple[float, float] = (4.8, 3.0)) -> Iterator[Plot]:
    """Yield a `Plot`.

    Args:
        name: name of the picture, unique in the page.
        words: what the plot shows, for readers who cannot see it.
        panels: number of axes side by side.
        size: width and height in inches.
    """
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(1, panels, figsize=size, layout="constrained", squeeze=False)
        for each in axes[0]:
            each.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 10]))
        try:
            drawing = Plot(axes[0])
            yield drawing
            content = StringIO()
            figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
            drawing.svg = _inline(content.getvalue(), name, words)
        finally:
            plt.close(figure)


def png_bytes(figure: Figure) -> bytes:
    """Return a figure of `plt` as PNG and close it."""
    content = BytesIO()
    try:
        figure.savefig(content, format="png", metadata={"Software": None})
    finally:
        plt.close(figure)
    return content.getvalue()


def colours(count: int) -> list[str]:
    """Return colours that can be told apart on white and, after the page has replaced them, on black."""
    return [PALETTE[index % len(PALETTE)][0] for index in range(count)]


def gate_styles(sites: Sequence[str], survivors: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the line style of each gate: survivors thick, on top and named; closed gates thin and grey.

    Beyond so many survivors as there are colours, strokes tell them apart; beyond `_MOST_NAMED` they have no names.
    """
    palette = dict(zip(survivors, colours(len(survivors)), strict=True))
    strokes = {site: _STROKES[index // len(PALETTE) % len(_STROKES)] for index, site in enumerate(survivors)}
    closed = [site for site in sites if site not in palette]
    names = short_names(survivors)
    label = f"{len(closed)} closed" if len(closed) > 1 else f"{short_names(closed)[0]} (closed)" if closed else ""
    if (unnamed := len(survivors) - _MOST_NAMED) > 1:
        names = [*names[:_MOST_NAMED], f"{unnamed} more", *["_"] * (unnamed - 1)]
    labels = dict(zip(survivors, names, strict=True))
    return {
        site: {
            "color": palette[site],
            "linestyle": strokes[site],
            "linewidth": 1.9,
            "zorder": 3,
            "label": labels[site],
        }
        if site in palette
        else {"color": QUIET[0], "linewidth": 1.0, "zorder": 2, "label": label if site == closed[0] else "_"}
        for site in sites
    }


def short_names(sites: Sequence[str]) -> list[str]:
    """Return names of sites for a legend: long ones without the parts with which all begin, and cut in the middle.

    Where two would become the same, all stay as they are.
    """
    if max(map(len, sites), default=0) <= _LONGEST_NAME:
        return list(sites)
    parts = [site.split(".") for site in sites]
    alike = [len(set(place)) == 1 for place in zip(*(one[:-1] for one in parts), strict=False)]
    common = [*alike, False].index(False) if len(sites) > 1 else 0
    half = (_LONGEST_NAME - 1) // 2
    whole = [".".join(one[common:]) for one in parts]
    short = [name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}" for name in whole]
    return short if len(set(short)) == len(short) else list(sites)


def plain(value: float, position: int | None = None) -> str:
    """Return the label of a tick on a logarithmic axis as plain text; a formula would need more than text."""
    return f"{value:g}"


def draw_marks(axes: Any, marks: Sequence[Mark]) -> None:
    """Draw a vertical line at each mark, with its label beside the upper end."""
    for iteration, label in marks:
        axes.axvline(iteration, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(
            label,
            (iteration, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -1),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=8,
        )


def _inline(svg: str, name: str, words: str) -> str:
    """Return an SVG file as part of a page: without prologue, metadata and size, with `name` before identifiers."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("xlink:href", "href").replace(INK, "currentColor")
    for index, (light, _) in enumerate(PALETTE):
        svg = svg.replace(light, f"var(--line-{index}, {light})")
    svg = svg.replace(QUIET[0], f"var(--quiet, {QUIET[0]})")
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    return f'<svg id="{name}" {box[0]} role="img" aria-label="{escape(words)}">' + svg[svg.index(">") + 1 :].rstrip()
