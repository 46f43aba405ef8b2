"""The shell of a report: one HTML page that needs nothing else, light or dark as the reader has it, wide or narrow.

Whatever is given as words is escaped. What is already HTML, such as the output of `table`, goes through `Section.body`.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1d1f21; --soft: #5c6166; --line: #d5d8db; --paper: #fff; --panel: #f6f7f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e8; --soft: #a0a5aa; --line: #3a3e42; --paper: #17191b; --panel: #1f2224; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
p { margin: .4rem 0; } .lead { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.planes { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 12rem), 1fr)); gap: .5rem; }
figure { margin: 0 0 1rem; padding: .6rem; background: var(--panel); border: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
svg, img { display: block; width: 100%; max-width: 100%; height: auto; }
"""


@dataclass(frozen=True)
class Section:
    """A heading, in words, and what stands under it, in HTML."""

    title: str
    body: str


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the whole page."""
    body = "\n".join(f"<section>\n<h2>{escape(section.title)}</h2>\n{section.body}\n</section>" for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n</header>\n<main>\n{body}\n</main>\n'
        "</body>\n</html>\n"
    )


def paragraph(words: str) -> str:
    """Return words as a paragraph."""
    return f"<p>{escape(words)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return cells, in words, as a table that scrolls by itself where it is wider than the page."""
    lines = [_cells("th", head), *(_cells("td", row) for row in rows)]
    return _block('<div class="scroll"><table>', lines, "</table></div>")


def figure(content: str, caption: str) -> str:
    """Return a picture, in HTML, with its caption, in words."""
    return f"<figure>\n{content}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def row(*figures: str) -> str:
    """Return figures side by side where there is room."""
    return _block('<div class="row">', figures, "</div>")


def planes(pictures: Sequence[tuple[str, bytes]]) -> str:
    """Return PNGs, each with words that say what it shows, as images side by side that the page itself holds."""
    images = [
        f'<img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for words, png in pictures
    ]
    return _block('<div class="planes">', images, "</div>")


def _cells(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _block(begin: str, lines: Sequence[str], end: str) -> str:
    return "\n".join([begin, *lines, end])
