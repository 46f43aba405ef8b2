"""Text for terminals: columns that line up, names that stay on their line, `8 scans`, grids as `112x112x80`."""

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


def grid_name(grid: Sequence[int]) -> str:
    """Return the lengths of a grid or of any other shape as one word, such as `112x112x80`."""
    return "x".join(map(str, grid))
