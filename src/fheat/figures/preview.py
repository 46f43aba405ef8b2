"""A look at a mask on its scan: three planes with contours."""

from collections.abc import Sequence

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


def preview_png(image: Volume, mask: Volume, names: Sequence[str] = ()) -> bytes:
    """Return a PNG of the planes through the middle of the mask, or of the scan where the mask is empty.

    The first channel is shown, from its 1st to its 99th percentile, in millimetres, patient upright: anterior or
    superior is up, and the axes say which side is which. `names` are those of the label values 1, 2, ...
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


def label_counts(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many voxels each value 0 to 255 has, plane by plane."""
    counts = np.zeros(256, dtype=np.int64)
    for plane in labels:
        counts += np.bincount(plane.ravel(order="K"), minlength=256)
    return counts


def middle_plane(labels: NDArray[np.uint8], axis: int) -> int:
    """Return the plane with as many labelled voxels before it as behind, or the scan's middle where there are none."""
    amounts = np.array([np.count_nonzero(labels.take(index, axis)) for index in range(labels.shape[axis])])
    if not amounts.any():
        return int(labels.shape[axis]) // 2
    return int(np.searchsorted(amounts.cumsum(), amounts.sum() / 2))
