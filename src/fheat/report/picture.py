"""A picture with its caption, as a part of a page and as a file of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fheat.files import write_file
from fheat.report.figures import standalone
from fheat.report.page import figure, planes


@dataclass(frozen=True)
class Picture:
    """What it shows in words, `content` as HTML, and the same as the bytes of a file."""

    file: str
    """Name of the file, such as residual.svg."""
    caption: str
    content: str
    data: bytes

    @property
    def html(self) -> str:
        """The figure as a part of a page, caption included."""
        return figure(self.content, self.caption)


def svg_picture(name: str, svg: str, caption: str) -> Picture:
    """Return the drawing of a `Plot`."""
    return Picture(f"{name}.svg", caption, svg, standalone(svg).encode())


def png_picture(name: str, png: bytes, caption: str) -> Picture:
    """Return a PNG."""
    return Picture(f"{name}.png", caption, planes([(caption, png)], name), png)


def write_pictures(folder: Path, drawn: Sequence[Picture]) -> list[Path]:
    """Write the file of every picture and return where they are."""
    for picture in drawn:
        write_file(folder / picture.file, picture.data)
    return [folder / picture.file for picture in drawn]
