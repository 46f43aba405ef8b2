"""How tables of results look as text."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lay cells out in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def number(value: float | None) -> str:
    """Print a metric to four places, and `-` where it is not defined."""
    return "-" if value is None else f"{value:.4f}"


def printable(name: str) -> str:
    """Return a name that stays on its line: control characters from a file are shown, not obeyed."""
    return name if name.isprintable() else ascii(name)
