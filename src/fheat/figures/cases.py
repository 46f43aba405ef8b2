"""Cases by methods: a row for each case, a column for its image, its reference and each method, with Dice and contours.

The axes of all arrays lead to the right, to the front and to the top of the patient, as `reorient(volume, "RAS")`
returns them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.figures.picture import Picture, png_picture
from fheat.figures.plots import plt, png_bytes
from fheat.figures.preview import PLANES, PREDICTED_COLOUR, REFERENCE_COLOUR, draw_contours
from fheat.metrics.masks import Mask, bounding_box, dice

MARGIN = 15.0
"""Millimetres of the image that are shown around the masks."""
STYLE: Any = {"text.parse_math": False, "font.size": 9}
"""Settings of matplotlib for names that may hold any character."""


@dataclass(frozen=True)
class ComparedCase:
    """A scan with its reference and the masks of several methods, all on one grid."""

    name: str
    image: NDArray[Any]
    """Intensities, (X, Y, Z), or (X, Y, Z, channels), of which the first channel is shown."""
    reference: NDArray[Any]
    """The true mask, (X, Y, Z): 0 outside and 1 inside."""
    masks: Mapping[str, NDArray[Any]]
    """The predicted mask of each method, in the order of the columns."""
    spacing: tuple[float, float, float]
    """Millimetres between voxel centres along each axis."""

    def __post_init__(self) -> None:
        if len(self.spacing) != 3 or not all(np.isfinite(step) and step > 0 for step in self.spacing):
            raise ValueError(f"spacing={self.spacing} of {self.name} is not usable: give three numbers above 0")
        for name, values in (("image", self.intensities), *self._all()):
            if values.ndim != 3 or values.shape != self.reference.shape:
                shapes = f"{name} {values.shape} and reference {self.reference.shape}"
                raise ValueError(f"{self.name} has {shapes}: give arrays (X, Y, Z) on one grid")
        for name, values in self._all():
            if not np.isin(values, (0, 1)).all():
                raise ValueError(f"{name} of {self.name} has values other than 0 and 1: give the mask of one class")

    def _all(self) -> list[tuple[str, NDArray[Any]]]:
        return [("reference", self.reference), *self.masks.items()]

    @property
    def intensities(self) -> NDArray[Any]:
        """The channel of the image that is shown."""
        return self.image[..., 0] if self.image.ndim == 4 else self.image

    @property
    def true(self) -> Mask:
        """The reference as booleans."""
        return self.reference.astype(np.bool_)

    def predicted(self, method: str) -> Mask:
        """Return the mask of a method as booleans."""
        return self.masks[method].astype(np.bool_)

    @property
    def anywhere(self) -> Mask:
        """The voxels that are in the reference or in the mask of any method."""
        voxels = self.true
        for method in self.masks:
            voxels = voxels | self.predicted(method)
        return voxels

    def dice(self, method: str) -> float:
        """Return the Dice of a method over the whole scan."""
        return dice(self.predicted(method), self.true)


def panels_picture(cases: Sequence[ComparedCase], name: str = "panels", *, axis: int = 2, words: str = "") -> Picture:
    """Return the figure of one plane of each case: the image, the reference, and the contours of each method.

    Args:
        cases: at least one; all have the same methods.
        name: name of the file, unique in a page.
        axis: axis across the plane: 0 sagittal, 1 coronal, 2 axial.
        words: sentences to put after the caption, such as dataset and number of labels.

    The plane of a case is the one with the largest section of the reference. Each panel shows the part with masks and
    a margin around it, to scale, and the Dice of the whole scan in its corner.
    """
    methods = methods_of(cases)
    places = [largest_section(case.true, axis) for case in cases]
    planes = ", ".join(f"{case.name} plane {place}" for case, place in zip(cases, places, strict=True))
    caption = (
        f"The {PLANES[axis][0]} plane with the largest section of the reference ({planes}): reference in blue, "
        f"prediction in orange. {dice_words(cases)}"
    )
    with plt.rc_context(STYLE):
        canvas, axes = case_grid(cases, ["image", "reference", *methods], [_aspect(case, axis) for case in cases])
        for row, case, place in zip(axes, cases, places, strict=True):
            _draw_row(row, case, methods, axis, place)
        png = png_bytes(canvas)
    return png_picture(name, png, " ".join(filter(None, (caption, words))))


def _draw_row(row: Sequence[Any], case: ComparedCase, methods: Sequence[str], axis: int, place: int) -> None:
    """Draw the plane of a case: the image, the reference on it, and each method on it with its Dice."""
    window = shown_window(case, axis)
    low, high = np.percentile(case.intensities, (1, 99))
    across, up = (case.spacing[other] for other in range(3) if other != axis)

    def section(values: NDArray[Any]) -> NDArray[Any]:
        plane: NDArray[Any] = np.moveaxis(values, axis, 0)[place]
        return plane[window].T

    for panel in row:
        panel.imshow(section(case.intensities), "gray", origin="lower", vmin=low, vmax=high, aspect=up / across)
    for panel in row[1:]:
        draw_contours(panel, section(case.true), REFERENCE_COLOUR)
    for panel, method in zip(row[2:], methods, strict=True):
        draw_contours(panel, section(case.predicted(method)), PREDICTED_COLOUR)
        write_dice(panel, case.dice(method), "white")


def methods_of(cases: Sequence[ComparedCase]) -> list[str]:
    """Return the methods, or raise `ValueError` where there is no case or the cases differ in methods."""
    if not cases:
        raise ValueError("cases is empty: give one case at least")
    methods = list(cases[0].masks)
    for case in cases:
        if set(case.masks) != set(methods):
            odd = ", ".join(sorted(set(case.masks) ^ set(methods)))
            raise ValueError(f"{case.name} and {cases[0].name} differ in the methods {odd}: give the masks of all")
    return methods


def largest_section(mask: Mask, axis: int) -> int:
    """Return the plane across an axis with the most voxels of a mask, or the middle one where there are none."""
    counts = np.count_nonzero(mask, axis=tuple(other for other in range(3) if other != axis))
    return int(counts.argmax()) if counts.any() else mask.shape[axis] // 2


def shown_window(case: ComparedCase, axis: int) -> tuple[slice, ...]:
    """Return the part of a plane across an axis that holds all masks of the case and the margin around them."""
    others = [other for other in range(3) if other != axis]
    if not case.anywhere.any():
        return tuple(slice(0, case.reference.shape[other]) for other in others)
    box = bounding_box(case.anywhere)
    extra = [round(MARGIN / case.spacing[other]) for other in others]
    return tuple(
        slice(max(0, box[other].start - more), min(case.reference.shape[other], box[other].stop + more))
        for other, more in zip(others, extra, strict=True)
    )


def _aspect(case: ComparedCase, axis: int) -> float:
    """Return the height of the part of a plane that is shown divided by its width."""
    steps = [case.spacing[other] for other in range(3) if other != axis]
    width, height = (
        (part.stop - part.start) * step for part, step in zip(shown_window(case, axis), steps, strict=True)
    )
    return float(height / width)


def case_grid(cases: Sequence[ComparedCase], titles: Sequence[str], aspects: Sequence[float]) -> tuple[Any, Any]:
    """Return a figure and its panels: one row for each case, which is named on its left, one column for each title.

    `aspects` has the height of the panels of each row divided by their width.
    """
    size = 2.0 * len(titles) + 0.3, 2.0 * sum(aspects) + 0.1 * len(cases) + 0.5
    canvas, axes = plt.subplots(
        len(cases), len(titles), figsize=size, dpi=110, layout="constrained", squeeze=False, height_ratios=aspects
    )
    for panel in axes.ravel():
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
    for panel, title in zip(axes[0], titles, strict=True):
        panel.set_title(title)
    for row, case in zip(axes, cases, strict=True):
        row[0].set_ylabel(case.name)
    return canvas, axes


def write_dice(panel: Any, score: float, colour: str) -> None:
    """Write the Dice into the upper left corner of a panel."""
    panel.text(0.03, 0.97, f"Dice {score:.4f}", color=colour, fontsize=8, va="top", transform=panel.transAxes)


def dice_words(cases: Sequence[ComparedCase]) -> str:
    """Return the Dice of every method on every case, in words."""
    rows = [", ".join(f"{method} {case.dice(method):.4f}" for method in case.masks) for case in cases]
    return f"Dice of the whole scan, {'; '.join(f'{case.name}: {row}' for case, row in zip(cases, rows, strict=True))}."
