"""Slices of a scan with two contours, the prediction's and the reference's, and how well they agree."""

from typing import Any

import numpy as np

from fheat.data.case import Case
from fheat.data.orientation import reorient
from fheat.data.read import read_image, read_label
from fheat.figures.page import figure, planes
from fheat.figures.plots import plt, png_bytes
from fheat.figures.preview import PLANES, middle_plane
from fheat.inference.predictor import Predictor
from fheat.io.volume import Volume
from fheat.metrics.masks import dice
from fheat.system.errors import BadInput
from fheat.system.progress import Progress

_PREDICTED, _REFERENCE = "#ff9d2e", "#35c9ff"


def scan_figure(predictor: Predictor, case: Case, progress: Progress | None = None) -> str:
    """Segment a scan and return three of its planes with both contours, and the Dice of every class."""
    image = read_image(case)
    reference = read_label(case, image)
    if reference is None:
        raise BadInput(case.images[0], "has no label to compare with", "choose another scan")
    predicted = predictor.segment(image, progress=progress)
    masks = predicted.data, reference.data
    scores = [
        f"{name} {dice(*(np.isin(mask, values) for mask in masks)):.4f}" for name, values in predictor.classes.items()
    ]
    caption = f"{case.id}: prediction in orange, reference in blue. Dice on the scan's own grid: {', '.join(scores)}."
    return figure(planes(contour_pngs(image, predicted, reference)), caption)


def contour_pngs(image: Volume, predicted: Volume, reference: Volume) -> list[tuple[str, bytes]]:
    """Return a name and a PNG of the sagittal, coronal and axial plane through the middle of the reference.

    To scale in millimetres, patient upright, as in `preview_png`. Every class has a contour in the same colour.
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
        _contours(axes, true.data.take(place, axis).T, _REFERENCE)
        _contours(axes, mask.data.take(place, axis).T, _PREDICTED)
        pictures.append(
            (f"{name} plane {place}, the patient's {first} at its left edge and {last} at its right", png_bytes(canvas))
        )
    return pictures


def _contours(axes: Any, section: Any, colour: str) -> None:
    for value in np.unique(section):
        if value and min(section.shape) > 1 and not (section == value).all():
            axes.contour(section == value, [0.5], colors=[colour], linewidths=1.3)
