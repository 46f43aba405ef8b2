"""One HTML page that needs no other file, light or dark as the reader prefers, wide or narrow; and its colours.

Arguments that are words are escaped. HTML, such as the result of `table`, is put into `PageSection.body` as it is.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

PALETTE = (
    ("#c8352b", "#ff8272"),
    ("#1f6fb2", "#72b6f5"),
    ("#2c8453", "#67cc93"),
    ("#b86e00", "#f0b052"),
    ("#7b4db3", "#bb9bea"),
    ("#0f858f", "#52c6d1"),
    ("#be3d7c", "#f18fba"),
    ("#75751a", "#c8c85e"),
)
"""Colours of lines: each on white and on black."""
QUIET = "#8b9197", "#868d94"
"""Colour of lines that should not stand out, on white and on black."""
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]\d+)?( ± [\d.e+-]+)?( [GM%]|%)?")
_LONG_NAME = 24
"""Number of characters beyond which the first cell of a row may break on a narrow screen."""
_FLUSH_RIGHT = ' class="n"'


@dataclass(frozen=True)
class PageSection:
    """A section of a page: a heading in words, and a body in HTML."""

    title: str
    body: str


def page(title: str, lead: str, sections: Sequence[PageSection], summary: str = "") -> str:
    """Return the whole page: title, lead, the outcome in a sentence, and the sections."""
    outcome = f'<p class="summary">{escape(summary)}</p>\n' if summary else ""
    body = "\n".join(f"<section>\n<h2>{escape(section.title)}</h2>\n{section.body}\n</section>" for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
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
    shown = [escape(cell) for cell in cells]
    if len(cells[0]) > _LONG_NAME:
        shown[0] = shown[0].replace(".", ".<wbr>")  # where a narrow screen may break a path
    pairs = zip(shown, numbers, strict=True)
    return f"<tr>{''.join(f'<{kind}{_FLUSH_RIGHT * number}>{cell}</{kind}>' for cell, number in pairs)}</tr>"


def _block(begin: str, lines: Sequence[str], end: str) -> str:
    return "\n".join([begin, *lines, end])


def _line_colours(dark: bool) -> str:
    """Return the colours of lines as CSS variables."""
    return " ".join(
        [f"--line-{index}: {pair[dark]};" for index, pair in enumerate(PALETTE)] + [f"--quiet: {QUIET[dark]};"]
    )


_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1d1f21; --soft: #5c6166; --line: #dcdfe2; --paper: #fff; --panel: #f7f8f9;
  {_line_colours(dark=False)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e4e6e8; --soft: #a4aab0; --line: #363a3e; --paper: #16181a; --panel: #1d2022;
    {_line_colours(dark=True)} }}
}}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; }}
body {{ margin: 0 auto; padding: 1.6rem 1.2rem 3rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }}
h2 {{ font-size: 1.2rem; line-height: 1.3; margin: 2.4rem 0 .7rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }}
p {{ margin: .5rem 0; max-width: 46rem; }} .lead {{ color: var(--soft); }}
.summary {{ font-size: 1.12rem; margin: 1rem 0 0; padding-left: .9rem; border-left: .25rem solid var(--line-0); }}
.scroll {{ overflow-x: auto; margin: .8rem 0; }}
table {{ border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .32rem 1.1rem .32rem 0; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }}
th {{ color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }} .n {{ text-align: right; }}
th:first-child, td:first-child {{ position: sticky; left: 0; background: var(--paper); }}
.long td + td {{ white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }}
.row {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem;
  margin: .8rem 0; }}
.planes {{ display: grid; grid-template-columns: repeat(3, 1fr); gap: .4rem; align-items: center; }}
.planes img:only-child {{ grid-column: 1 / -1; }}
figure {{ margin: 0; padding: .8rem; background: var(--panel); border: 1px solid var(--line); border-radius: .3rem; }}
figure + figure {{ margin-top: 1rem; }} .row > figure {{ margin: 0; }}
figcaption {{ color: var(--soft); font-size: .87rem; line-height: 1.45; margin-top: .5rem; }}
svg, img {{ display: block; width: 100%; max-width: 100%; height: auto; }}
@media (min-width: 53rem) {{
  .row > figure:last-child:nth-child(odd) {{ grid-column: 1 / -1; display: grid; grid-template-columns: 1fr 1fr;
    gap: 1.6rem; align-items: center; }}
}}
@media (max-width: 34rem) {{
  body {{ padding: 1rem .8rem 2rem; }} h1 {{ font-size: 1.35rem; }} figure {{ padding: .5rem; }}
  th, td {{ padding-right: .8rem; }}
  td:first-child {{ white-space: normal; overflow-wrap: anywhere; min-width: 8.5rem; }}
  .planes {{ grid-template-columns: 1fr 1fr; }} .planes img:first-child {{ grid-column: 1 / -1; }}
}}
@media print {{ figure, tr {{ break-inside: avoid; }} h2 {{ break-after: avoid; }} }}
"""
