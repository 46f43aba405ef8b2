"""Masks on their scan: three planes with the contours of one mask, or of a prediction and its reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.data.orientation import reorient
from fheat.figures.plots import plt, png_bytes
from fheat.io.volume import Volume

PLANES = (
    ("sagittal", 0, ("posterior", "anterior")),
    ("coronal", 1, ("left", "right")),
    ("axial", 2, ("left", "right")),
)
"""Name of each plane, the axis across it, and the sides of the patient at its left and right edge."""
PREDICTED_COLOUR, REFERENCE_COLOUR = "#ff9d2e", "#35c9ff"
"""Colours of the contours of a prediction and of its reference."""


def preview_png(image: Volume, mask: Volume, names: Sequence[str] = ()) -> bytes:
    """Return a PNG of the planes through the middle of the mask, or of the scan where the mask is empty.

    The first channel is shown from its 1st to its 99th percentile, to scale in millimetres, with the patient upright:
    anterior or superior is up, and the axes name the sides. `names` are those of the label values 1, 2, ...
    """
    scan, labels = reorient(image, "RAS"), reorient(mask, "RAS").data
    voxels = scan.data[..., 0] if scan.data.ndim == 4 else scan.data
    middle = [middle_plane(labels, axis) for axis in range(3)]
    low, high = np.percentile(voxels[::4, ::4, ::4], (1, 99))
    values = [int(value) for value in np.flatnonzero(label_counts(labels)) if value]
    colours = plt.get_cmap("Set1")(np.arange(len(values)) % 9)
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.4), dpi=100, layout="constrained")
    for plot, (name, axis, (first, last)) in zip(axes, PLANES, strict=True):
        across, up = (scan.spacing[other] for other in range(3) if other != axis)
        plot.imshow(voxels.take(middle[axis], axis).T, "gray", origin="lower", vmin=low, vmax=high, aspect=up / across)
        section = labels.take(middle[axis], axis).T
        for colour, value in zip(colours, values, strict=True):
            if (section == value).any() and min(section.shape) > 1:
                plot.contour(section == value, [0.5], colors=[colour], linewidths=1.2)
        plot.set(title=f"{name} {middle[axis]}", xlabel=f"{first} to {last}", xticks=[], yticks=[])
    handles, texts = [], []
    for colour, value in zip(colours, values, strict=True):
        handles += axes[0].plot([], [], color=colour)
        texts.append(names[value - 1] if value <= len(names) else f"label {value}")
    if values:
        legend = figure.legend(handles, texts, loc="outside lower center", ncols=len(values), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return png_bytes(figure)


def contour_pngs(image: Volume, predicted: Volume, reference: Volume) -> list[tuple[str, bytes]]:
    """Return words and a PNG for each of the sagittal, coronal and axial planes through the middle of the reference.

    They are to scale in millimetres with the patient upright, as in `preview_png`. All classes of a mask have contours
    in one colour: orange for the prediction, blue for the reference.
    """
    scan, mask, true = (reorient(volume, "RAS") for volume in (image, predicted, reference))
    voxels = scan.data[..., 0] if scan.data.ndim == 4 else scan.data
    low, high = np.percentile(voxels[::4, ::4, ::4], (1, 99))
    pictures = []
    for name, axis, (first, last) in PLANES:
        place = middle_plane(true.data, axis)
        across, up = (scan.spacing[other] * voxels.shape[other] for other in range(3) if other != axis)
        canvas = plt.figure(figsize=(3.2, 3.2 * up / across), dpi=100)
        axes = canvas.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        section = voxels.take(place, axis).T
        axes.imshow(section, "gray", origin="lower", vmin=low, vmax=high, aspect="auto")
        draw_contours(axes, true.data.take(place, axis).T, REFERENCE_COLOUR)
        draw_contours(axes, mask.data.take(place, axis).T, PREDICTED_COLOUR)
        words = f"{name} plane {place}, the patient's {first} at its left edge and {last} at its right"
        pictures.append((words, png_bytes(canvas)))
    return pictures


def draw_contours(axes: Any, section: Any, colour: str) -> None:
    """Draw the contour of every label in a section; none where a label fills the section or the section is a line."""
    for value in np.unique(section):
        if value and min(section.shape) > 1 and not (section == value).all():
            axes.contour(section == value, [0.5], colors=[colour], linewidths=1.3)


def label_counts(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the number of voxels of each value from 0 to 255."""
    counts = np.zeros(256, dtype=np.int64)
    for plane in labels:
        counts += np.bincount(plane.ravel(order="K"), minlength=256)
    return counts


def middle_plane(labels: NDArray[np.uint8], axis: int) -> int:
    """Return the plane that has as many labelled voxels before it as behind, or the middle one where there are none."""
    counts = np.array([np.count_nonzero(labels.take(index, axis)) for index in range(labels.shape[axis])])
    if not counts.any():
        return int(labels.shape[axis]) // 2
    return int(np.searchsorted(counts.cumsum(), counts.sum() / 2))
