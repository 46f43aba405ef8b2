"""Drawings made of lines, boxes and words, as SVG in the colours of a page: without matplotlib, the same bytes always.

A drawing is a list of elements, each a string. `drawing` puts them into one SVG, which `svg_picture` turns into a file.
"""

from collections.abc import Sequence
from html import escape
from typing import Literal

from fheat.figures.page import PALETTE, QUIET

INK = "currentColor"
"""The colour of text in the page."""
QUIET_INK = f"var(--quiet, {QUIET[0]})"
"""The colour of what should not stand out."""
Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


def line_colour(index: int) -> str:
    """Return the colour of a line, by its place in the palette."""
    return f"var(--line-{index}, {PALETTE[index][0]})"


def drawing(name: str, words: str, width: float, height: float, elements: Sequence[str]) -> str:
    """Return an SVG for a page. `name` is unique in the page; `words` describe it for readers who cannot see it."""
    head = (
        f'<marker id="{name}-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8Z" fill="{INK}"/></marker>'
    )
    return "\n".join(
        [
            f'<svg id="{name}" viewBox="0 0 {number(width)} {number(height)}" role="img" aria-label="{escape(words)}" '
            'font-family="system-ui, sans-serif">',
            f"<defs>{head}</defs>",
            *elements,
            "</svg>",
        ]
    )


def number(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(
    words: str, at: Point, *, size: float = 12, anchor: Anchor = "middle", colour: str = INK, bold: bool = False
) -> str:
    """Return words on a base line that goes through a point."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{number(at[0])}" y="{number(at[1])}" font-size="{number(size)}" text-anchor="{anchor}" '
        f'fill="{colour}"{weight}>{escape(words)}</text>'
    )


def box(centre: Point, width: float, height: float, *, name: str = "", dashed: bool = False, fill: float = 0.08) -> str:
    """Return a box with round corners; `name` says what it stands for, `fill` how much of the ink its inside has."""
    x, y = centre[0] - width / 2, centre[1] - height / 2
    label = f' data-name="{escape(name)}"' if name else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect{label} x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="4" '
        f'fill="{INK}" fill-opacity="{number(fill)}" stroke="{INK}" stroke-opacity="0.6"{dashes}/>'
    )


def path(points: Sequence[Point], *, arrow: str = "", dashed: bool = False, colour: str = INK) -> str:
    """Return a line through points; `arrow` is the name of the drawing if the line ends in an arrow head."""
    way = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    head = f' marker-end="url(#{arrow}-head)"' if arrow else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="1.2"{dashes}{head}/>'


def circle(centre: Point, radius: float, *, fill: str = "none", stroke: str = INK, dashed: bool = False) -> str:
    """Return a circle."""
    dashes = ' stroke-dasharray="2.5 2"' if dashed else ""
    return (
        f'<circle cx="{number(centre[0])}" cy="{number(centre[1])}" r="{number(radius)}" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.4"{dashes}/>'
    )
