"""Cases by methods as surfaces: red where a prediction reaches beyond the reference, blue where it misses it."""

from collections.abc import Sequence

import numpy as np

from fheat.figures.cases import STYLE, ComparedCase, case_grid, dice_words, methods_of, write_dice
from fheat.figures.picture import Picture, png_picture
from fheat.figures.plots import plt, png_bytes
from fheat.figures.rendering import BEYOND, FULL_COLOUR, MISSED, VIEW, Values, coloured, render, signed_distance
from fheat.metrics.masks import bounding_box


def surfaces_picture(
    cases: Sequence[ComparedCase], name: str = "surfaces", *, view: tuple[float, float] = VIEW, words: str = ""
) -> Picture:
    """Return the figure of the surfaces: the reference, and for each method prediction and reference together.

    Args:
        cases: at least one; all have the same methods.
        name: name of the file, unique in a page.
        view: direction of the viewer, see `VIEW`.
        words: sentences to put after the caption, such as dataset and number of labels.

    All panels of a case have one scale and one view.
    """
    methods = methods_of(cases)
    caption = (
        f"Surfaces of prediction and reference together: red where the prediction reaches beyond the reference, blue "
        f"where it misses it, in full colour from {FULL_COLOUR:g} mm on. {dice_words(cases)}"
    )
    rows = [_views(case, methods, view) for case in cases]
    with plt.rc_context(STYLE):
        canvas, axes = case_grid(cases, ["reference", *methods], [row[0].shape[0] / row[0].shape[1] for row in rows])
        for panels, case, row in zip(axes, cases, rows, strict=True):
            for panel, picture in zip(panels, row, strict=True):
                panel.imshow(picture)
            for panel, method in zip(panels[1:], methods, strict=True):
                write_dice(panel, case.dice(method), "black")
        keys = [axes[0, 0].plot([], [], "s", color=colour)[0] for colour in (BEYOND, MISSED)]
        canvas.legend(keys, ["beyond the reference", "missed"], loc="outside lower right", ncols=2, frameon=False)
        png = png_bytes(canvas)
    return png_picture(name, png, " ".join(filter(None, (caption, words))))


def _views(case: ComparedCase, methods: Sequence[str], view: tuple[float, float]) -> list[Values]:
    """Return the pictures of the reference and of every method, cut to what any of them holds."""
    box = bounding_box(case.anywhere) if case.anywhere.any() else tuple(map(slice, case.reference.shape))
    masks = [case.true, *(case.predicted(method) for method in methods)]
    distances = [signed_distance(np.pad(mask[box], 2), case.spacing) for mask in masks]
    return [coloured(render(distance, distances[0], case.spacing, view)) for distance in distances]
