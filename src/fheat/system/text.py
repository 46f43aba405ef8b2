"""Text for terminals: columns that line up, names that stay on their line, `8 scans`, `12 min`, `112x112x80`."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

MOST_LISTED: Final = 8
"""Largest number of things that a sentence lists; FHEAT-Seg has so many gates."""
_LONGEST_LIST: Final = 320
"""Largest number of characters of a list that is given whole."""
_LONGEST_PART: Final = 130
"""Number of characters up to which a list is given in part."""


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Return rows of cells as lines whose columns are as wide as their widest cell, two spaces apart.

    With `right` all columns but the first are flush right. Every row must have the same number of cells, which are made
    printable.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *(">" if right else "<" for _ in widths[1:])]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    )


def printable(text: object) -> str:
    r"""Return a text that stays on its line and that every stream can take: what is not printable is written as escape.

    Control characters and escape sequences, line ends, marks that change the direction of writing, and bytes of file
    names that are no text are shown (`\n`, `\x1b`, `\u202e`, `\udcff`), not obeyed. All else is left as it is.
    """
    written = str(text)
    if written.isprintable():
        return written
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in written)


def counted(number: int, noun: str) -> str:
    """Return a number of things, such as `1 scan` or `8 scans`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Return a time as people say it: `40 s`, `12 min`, `3 h 5 min`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def grid_name(grid: Sequence[int]) -> str:
    """Return the lengths of a grid or of any other shape as one word, such as `112x112x80`."""
    return "x".join(map(str, grid))


def some_of(words: Sequence[str]) -> list[str]:
    """Return words to list in a sentence: all, or of many or long ones the first and how many more there are.

    >>> some_of(["enc1", "enc2"])
    ['enc1', 'enc2']
    >>> some_of([f"body.decoder{number}.conv_block.conv1.conv is open" for number in range(9)])[1:]
    ['body.decoder1.conv_block.conv1.conv is open', '7 more']
    """
    if len(words) <= MOST_LISTED and sum(map(len, words)) <= _LONGEST_LIST:
        return list(words)
    kept = max(sum(total <= _LONGEST_PART for total in accumulate(map(len, words))), 1)
    kept = min(kept, MOST_LISTED - 1)
    return list(words) if kept == len(words) else [*words[:kept], f"{len(words) - kept} more"]
