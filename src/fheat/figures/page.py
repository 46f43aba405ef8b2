"""One HTML page that needs no other file, in the reader's light or dark colours, on wide and narrow screens.

Arguments that are words are escaped. What is HTML already, such as the result of `table`, is put into `Section.body`.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fheat.figures.theme import STYLE

_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]\d+)?( ± [\d.e+-]+)?( [GM%]|%)?")
_FLUSH_RIGHT = ' class="n"'


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading in words, and a body in HTML."""

    title: str
    body: str


def page(title: str, lead: str, sections: Sequence[Section], summary: str = "") -> str:
    """Return the whole page: title, lead, the outcome in a sentence, and the sections."""
    outcome = f'<p class="summary">{escape(summary)}</p>\n' if summary else ""
    body = "\n".join(f"<section>\n<h2>{escape(section.title)}</h2>\n{section.body}\n</section>" for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{outcome}</header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def paragraph(words: str) -> str:
    """Return words as a paragraph."""
    return f"<p>{escape(words)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, long: bool = False) -> str:
    """Return a table of cells in words; it scrolls by itself where it is wider than the page.

    Columns of numbers are flush right. With `long` the lines of all columns but the first may break.
    """
    numbers = [all(not cell or _NUMBER.fullmatch(cell) for cell in column) for column in zip(*rows, strict=True)]
    numbers = numbers or [False] * len(head)
    lines = [_cells("th", head, numbers), *(_cells("td", row, numbers) for row in rows)]
    begin = '<table class="long">' if long else "<table>"
    return _block(f'<div class="scroll">{begin}', lines, "</table></div>")


def figure(content: str, caption: str) -> str:
    """Return a figure: a picture in HTML with its caption in words."""
    return f"<figure>\n{content}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def row(*figures: str) -> str:
    """Return figures side by side where there is room."""
    return _block('<div class="row">', figures, "</div>")


def planes(pictures: Sequence[tuple[str, bytes]], name: str | None = None) -> str:
    """Return PNGs as images side by side, stored in the page itself; each comes with words that say what it shows.

    A single picture may have a name, which is unique in the page.
    """
    begin = "<img" if name is None else f'<img id="{escape(name)}"'
    images = [
        f'{begin} alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for words, png in pictures
    ]
    return _block('<div class="planes">', images, "</div>")


def _cells(kind: str, cells: Sequence[str], numbers: Sequence[bool]) -> str:
    pairs = zip(cells, numbers, strict=True)
    return f"<tr>{''.join(f'<{kind}{_FLUSH_RIGHT * number}>{escape(cell)}</{kind}>' for cell, number in pairs)}</tr>"


def _block(begin: str, lines: Sequence[str], end: str) -> str:
    return "\n".join([begin, *lines, end])
