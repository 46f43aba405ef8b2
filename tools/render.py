"""Write the numbers of README.md and docs/ from the stored results: `python tools/render.py`, or `make docs`.

A page keeps each number in its place, between two comments that no reader sees:

    <!--value step-cuda: per_second: plain: .1f-->14.8<!--/-->     one value of a stored result, and its format
    <!--text pairing: base: 4000: dec1-->+0.0250<!--/-->            what a function of tools/pages returns
    <!--command bench-cpu-->                                        the command of a stored result, as a block of code

An opening comment that stands alone on its line holds a block, such as a table. `--check` writes nothing and exits with
1 if a page differs from what would be written.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pages import TEXTS
from pages.common import formatted, reading, stored_head, stored_value
from results import ROOT

OPENING = re.compile(r"<!--(?:value|text|command) ")
MARK = re.compile(r"<!--(value|text|command) (.+?)-->(.*?)<!--/-->", re.S)


class MarkError(ValueError):
    """A mark that cannot be rendered; the message says where it stands and why."""


def pages() -> list[Path]:
    """Return the pages whose numbers are rendered."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rendered(page: Path) -> str:
    """Return the text of a page with every number as it is stored, or raise `MarkError`."""
    text = page.read_text()
    if not len(OPENING.findall(text)) == text.count("<!--/-->") == len(MARK.findall(text)):
        raise MarkError(f"{page.name}: an opening comment has no closing <!--/-->, or the other way round")
    return MARK.sub(lambda found: _replaced(found, page, text), text)


def used_results(page: Path) -> set[str]:
    """Return the names of the stored results that a page shows or links to."""
    with reading() as names:
        text = rendered(page)
    return names | set(re.findall(r"benchmarks/results/([\w-]+)\.json", text))


def _replaced(found: re.Match[str], page: Path, text: str) -> str:
    kind, inside, old = found.groups()
    line = text.count("\n", 0, found.start()) + 1
    begins_line = found.start() == 0 or text[found.start() - 1] == "\n"
    block = begins_line and old.startswith("\n")
    if begins_line and not block:
        # Markdown would take such a line for a block of HTML and end the paragraph.
        raise MarkError(f"{page.name}, line {line}: a number must not be the first word of a line")
    try:
        new = _content(kind, [part.strip() for part in inside.split(": ")])
    except (KeyError, IndexError, TypeError, ValueError, OSError) as error:
        raise MarkError(f"{page.name}, line {line}: {inside}: {type(error).__name__}: {error}") from error
    new = f"\n\n{new}\n\n" if block else new
    return f"<!--{kind} {inside}-->{new}<!--/-->"


def _content(kind: str, parts: list[str]) -> str:
    if kind == "value":
        *path, spec = parts
        return formatted(stored_value(": ".join(path)), spec)
    if kind == "command":
        return f"    {stored_head(parts[0]).command}"
    return TEXTS[parts[0]](*parts[1:])


def differing() -> Iterator[tuple[Path, str]]:
    """Yield each page that differs from what would be written, with the text that it should have."""
    for page in pages():
        text = rendered(page)
        if text != page.read_text():
            yield page, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    options = parser.parse_args()
    try:
        stale = dict(differing())
    except MarkError as error:
        print(error, file=sys.stderr)
        return 2
    for page, text in stale.items():
        if not options.check:
            page.write_text(text)
        print(f"{page.relative_to(ROOT)}: {'is out of date; run make docs' if options.check else 'written'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
