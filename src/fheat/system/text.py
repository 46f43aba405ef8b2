"""Text for terminals: columns that line up, names that stay on their line, `8 scans`, `12 min`, `112x112x80`."""

from collections.abc import Sequence


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
