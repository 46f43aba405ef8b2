"""Masks on their scan: three planes with the contours of one mask, or of a prediction and its reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from numpy.typing import NDArray

from fheat.data.classes import label_counts
from fheat.data.orientation import reorient
from fheat.data.planes import slowest_axis
from fheat.figures.plots import plt, png_bytes
from fheat.io.volume import Volume

PLANES = (
    ("sagittal", 0, ("posterior", "anterior")),
    ("coronal", 1, ("left", "right")),
    ("axial", 2, ("left", "right")),
)
"""Name of each plane, the axis across it, and the sides of the patient at its left and right edge."""
SIDES = (("P", "A", "I", "S"), ("L", "R", "I", "S"), ("L", "R", "P", "A"))
"""Letters of the sides of the patient at the left, right, lower and upper edge of each plane."""
WINDOW = (1.0, 99.0)
"""Percentiles of the intensities that are shown black and white."""
_EDGES = (
    (0.02, 0.5, "left", "center"),
    (0.98, 0.5, "right", "center"),
    (0.5, 0.02, "center", "bottom"),
    (0.5, 0.98, "center", "top"),
)
"""Where the letters of the left, right, lower and upper side stand in a picture, and how they are aligned."""
PREDICTED_COLOUR, REFERENCE_COLOUR = "#ff9d2e", "#35c9ff"
"""Colours of the contours of a prediction and of its reference."""


def preview_png(
    image: Volume,
    mask: Volume,
    names: Sequence[str] = (),
    *,
    reference: Volume | None = None,
    window: tuple[float, float] = WINDOW,
) -> bytes:
    """Return a PNG of the planes through the middle of the mask, or of the scan where the mask is empty.

    Args:
        image: the scan, of which the first channel is shown.
        mask: label values on the grid of the scan.
        names: names of the label values 1, 2, ...
        reference: another mask on this grid, whose contours are drawn in dashes.
        window: percentiles of the intensities that are black and white.

    The planes are to scale in millimetres, with the patient upright: anterior or superior is up, the patient's left is
    on the left, and letters name the sides.
    """
    scan, labels = reorient(image, "RAS"), reorient(mask, "RAS").data
    true = None if reference is None else reorient(reference, "RAS").data
    voxels = scan.data[..., 0] if scan.data.ndim == 4 else scan.data
    middle = middle_planes(labels)
    low, high = np.percentile(voxels[::4, ::4, ::4], window)
    values = [int(value) for value in np.flatnonzero(label_counts(labels)) if value]
    colours = plt.get_cmap("Set1")(np.arange(len(values)) % 9)
    extents = [length * spacing for length, spacing in zip(voxels.shape, scan.spacing, strict=True)]
    tallest = max(
        up / across for across, up in ([extents[one] for one in range(3) if one != axis] for axis in range(3))
    )
    height = float(np.clip(3.7 * tallest + 1.3, 3, 9))  # room for titles and legend above and below the tallest plane
    figure, axes = plt.subplots(1, 3, figsize=(12, height), dpi=100, layout="constrained")
    for plot, (name, axis, _), (left, right, lower, upper) in zip(axes, PLANES, SIDES, strict=True):
        across, up = (scan.spacing[other] for other in range(3) if other != axis)
        place = middle[axis]
        grey, section = plane_at(voxels, axis, place).T, plane_at(labels, axis, place).T
        plot.imshow(grey, "gray", origin="lower", vmin=low, vmax=high, aspect=up / across)
        for colour, value in zip(colours, values, strict=True):
            if (section == value).any() and min(section.shape) > 1:
                plot.contour(section == value, [0.5], colors=[colour], linewidths=1.2)
        if true is not None:
            draw_contours(plot, plane_at(true, axis, place).T, REFERENCE_COLOUR, dashed=True)
        plot.set(title=f"{name} {place}\n{upper}", xlabel=lower, xticks=[], yticks=[])
        plot.set_ylabel(left, rotation=0, va="center", ha="right")
        plot.text(1.02, 0.5, right, transform=plot.transAxes, va="center")
    handles, texts = [], []
    for colour, value in zip(colours, values, strict=True):
        handles += axes[0].plot([], [], color=colour)
        texts.append(names[value - 1] if value <= len(names) else f"label {value}")
    if true is not None:
        handles += axes[0].plot([], [], "--", color=REFERENCE_COLOUR)
        texts.append("reference")
    if texts:
        legend = figure.legend(handles, texts, loc="outside lower center", ncols=len(texts), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return png_bytes(figure)


def contour_pngs(image: Volume, predicted: Volume, reference: Volume) -> list[tuple[str, bytes]]:
    """Return words and a PNG for each of the sagittal, coronal and axial planes through the middle of the reference.

    They are to scale in millimetres with the patient upright and letters at the sides, as in `preview_png`. All classes
    of a mask have contours in one colour: orange for the prediction, blue for the reference.
    """
    scan, mask, true = (reorient(volume, "RAS") for volume in (image, predicted, reference))
    voxels = scan.data[..., 0] if scan.data.ndim == 4 else scan.data
    low, high = np.percentile(voxels[::4, ::4, ::4], (1, 99))
    pictures, middle = [], middle_planes(true.data)
    for (name, axis, (first, last)), letters in zip(PLANES, SIDES, strict=True):
        place = middle[axis]
        across, up = (scan.spacing[other] * voxels.shape[other] for other in range(3) if other != axis)
        canvas = plt.figure(figsize=(3.2, 3.2 * up / across), dpi=100)
        axes = canvas.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        section = plane_at(voxels, axis, place).T
        axes.imshow(section, "gray", origin="lower", vmin=low, vmax=high, aspect="auto")
        draw_contours(axes, plane_at(true.data, axis, place).T, REFERENCE_COLOUR)
        draw_contours(axes, plane_at(mask.data, axis, place).T, PREDICTED_COLOUR)
        for letter, (x, y, across, along) in zip(letters, _EDGES, strict=True):
            text = axes.text(x, y, letter, transform=axes.transAxes, color="white", size=8, ha=across, va=along)
            text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="black")])
        words = f"{name} plane {place}, the patient's {first} at its left edge and {last} at its right"
        pictures.append((words, png_bytes(canvas)))
    return pictures


def draw_contours(axes: Any, section: Any, colour: str, *, dashed: bool = False) -> None:
    """Draw the contour of every label in a section; none where a label fills the section or the section is a line."""
    for value in np.unique(section):
        if value and min(section.shape) > 1 and not (section == value).all():
            axes.contour(section == value, [0.5], colors=[colour], linewidths=1.3, linestyles="--" if dashed else "-")


def plane_at(voxels: NDArray[Any], axis: int, place: int) -> NDArray[Any]:
    """Return one plane as a view; `numpy.take` would copy a whole scan whose first axis is the fastest, as in NIfTI."""
    plane: NDArray[Any] = np.moveaxis(voxels, axis, 0)[place]
    return plane


def middle_planes(labels: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Return for each axis the plane that has as many labelled voxels before it as behind, or the middle one.

    Voxels are read once, in the order in which they lie in memory.
    """
    slowest = slowest_axis(labels)
    others = [axis for axis in range(3) if axis != slowest]
    counts = [np.zeros(length, np.int64) for length in labels.shape]
    for place, plane in enumerate(np.moveaxis(labels, slowest, 0)):
        solid = plane != 0
        counts[slowest][place] = np.count_nonzero(solid)
        if counts[slowest][place]:
            for axis, along in zip(others, (1, 0), strict=True):
                counts[axis] += solid.sum(axis=along)
    x, y, z = (_half_way(one) for one in counts)
    return x, y, z


def _half_way(counts: NDArray[np.int64]) -> int:
    return int(np.searchsorted(counts.cumsum(), counts.sum() / 2)) if counts.any() else len(counts) // 2
