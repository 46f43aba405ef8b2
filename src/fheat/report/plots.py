"""A plot as SVG inside a page: the colour of its text follows the page, its names stay its own, every time the same."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_INK = "#010203"  # what no plot uses otherwise
_STYLE: Any = {
    "svg.hashsalt": "fheat",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "legend.fontsize": 9,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), _INK
    ),
}


class Plot:
    """Axes to draw on; `svg` holds the picture once the block of `plot` is left."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes
        self.svg = ""


@contextmanager
def plot(name: str, words: str) -> Iterator[Plot]:
    """Yield a `Plot`. `name` is unique in the page; `words` say what the plot shows to who cannot see it."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.2, 3.6), layout="constrained")
        try:
            drawing = Plot(axes)
            yield drawing
            page = StringIO()
            figure.savefig(page, format="svg", transparent=True, metadata={"Date": None})
            drawing.svg = _inline(page.getvalue(), name, words)
        finally:
            plt.close(figure)


def standalone(svg: str) -> str:
    """Return the picture of a `Plot` as a file of its own: named as SVG, black on white."""
    return (
        svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" style="background: #fff; color: #000" ', 1) + "\n"
    )


def colours(count: int) -> list[Any]:
    """Return colours that can be told apart on white and on black."""
    return [plt.get_cmap("tab10")(index % 10) for index in range(count)]


def _inline(svg: str, name: str, words: str) -> str:
    """Take the picture out of its file: no prologue, no metadata, no size of its own, identifiers under a name."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("xlink:href", "href").replace(_INK, "currentColor")
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    return f'<svg {box[0]} role="img" aria-label="{escape(words)}">' + svg[svg.index(">") + 1 :].rstrip()
