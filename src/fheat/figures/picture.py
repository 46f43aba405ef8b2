"""Pictures with captions, as parts of a page and as files: SVG plots, PNG slices and `captions.json`."""

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from fheat.figures.page import figure, planes
from fheat.system.errors import BadInput
from fheat.system.files import TEXT_LIMIT, read_capped, write_file

CAPTIONS = "captions.json"
_FIGURE = re.compile(r"<figure>\n(.*?)\n<figcaption>(.*?)</figcaption>\n</figure>", re.S)
_PLOT = re.compile(r'(<svg id="([^"]*)".*?</svg>)', re.S)
_IMAGE = re.compile(r'<img(?: id="([^"]*)")? alt="([^"]*)" src="data:image/png;base64,([^"]*)">')
_INK, _PAPER = "#1d1f21", "#ffffff"


def save_figures(content: str, folder: Path) -> list[Path]:
    """Write every figure of a page into a folder and return the files, `captions.json` last.

    A picture that has a name in the page keeps it; slices are named `slices-1-1.png` and so on, by figure and plane.
    `captions.json` has the caption of every file. Files that an earlier `captions.json` in the folder lists and that
    this page does not have are removed.
    """
    files: dict[str, tuple[str, bytes]] = {}
    slices = 0  # number of figures whose images have no name
    for body, words in _FIGURE.findall(content):
        caption = unescape(words)
        for svg, name in _PLOT.findall(body):
            files[f"{name}.svg"] = caption, standalone(svg).encode()
        images = _IMAGE.findall(body)
        slices += any(not name for name, _, _ in images)
        for plane, (name, shows, png) in enumerate(images, start=1):
            words = caption if name else f"{caption} {unescape(shows)}."
            files[f"{name or f'slices-{slices}-{plane}'}.png"] = words, base64.b64decode(png)
    for name in _written_before(folder) - files.keys():
        (folder / name).unlink(missing_ok=True)
    for name, (_, data) in files.items():
        write_file(folder / name, data)
    captions = {name: caption for name, (caption, _) in files.items()}
    write_file(folder / CAPTIONS, (json.dumps(captions, indent=1, ensure_ascii=False) + "\n").encode())
    return [folder / name for name in (*files, CAPTIONS)]


def _written_before(folder: Path) -> set[str]:
    """Return the names of the SVG and PNG files that `captions.json` of a folder lists; other names are ignored."""
    try:
        names = set(json.loads(read_capped(folder / CAPTIONS, TEXT_LIMIT)))
    except (
        BadInput,
        OSError,
        ValueError,
        TypeError,
        RecursionError,
    ):  # no file, or not one of ours
        return set()
    return {name for name in names if isinstance(name, str) and re.fullmatch(r"[\w-]+\.(svg|png)", name)}


def standalone(svg: str) -> str:
    """Return a plot of a page as an SVG file that any viewer shows: on white, in the colours of a light page."""
    svg = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", svg).replace("currentColor", _INK)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt" '
    end = svg.index(">") + 1
    paper = f'\n<rect width="100%" height="100%" fill="{_PAPER}"/>'
    return '<?xml version="1.0" encoding="utf-8"?>\n' + head + svg[len("<svg ") : end] + paper + svg[end:] + "\n"


@dataclass(frozen=True)
class Picture:
    """A picture with its caption, as HTML and as a file."""

    file: str
    """Name of the file, such as residual.svg."""
    caption: str
    content: str
    """The picture in HTML, without its caption."""
    data: bytes
    """Content of the file."""

    @property
    def html(self) -> str:
        """The figure as a part of a page, caption included."""
        return figure(self.content, self.caption)


def svg_picture(name: str, svg: str, caption: str) -> Picture:
    """Return the SVG of a `Plot` as a picture."""
    return Picture(f"{name}.svg", caption, svg, standalone(svg).encode())


def png_picture(name: str, png: bytes, caption: str) -> Picture:
    """Return a PNG as a picture."""
    return Picture(f"{name}.png", caption, planes([(caption, png)], name), png)


def picture_of(name: str, html: str) -> Picture:
    """Return a figure of a page, which holds one plot, as a picture with a name of its own."""
    body, words = _FIGURE.findall(html)[0]
    return svg_picture(name, _PLOT.findall(body)[0][0], unescape(words))


def write_pictures(folder: Path, drawn: Sequence[Picture]) -> list[Path]:
    """Write the file of every picture into a folder and return the files."""
    for picture in drawn:
        write_file(folder / picture.file, picture.data)
    return [folder / picture.file for picture in drawn]
