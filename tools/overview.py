"""Draw the picture at the top of the README from two pictures of the demo: `python tools/overview.py`.

`fheat demo` writes mask.png (a new scan with the contour of the predicted mask, three planes) and allocation.png, whose
left half shows the strength of every gate over the iterations. Here they stand side by side.
"""

from pathlib import Path

import matplotlib.image
from results import ROOT

from fheat.figures.plots import plt, png_bytes
from fheat.system.files import write_file

IMAGES = ROOT / "docs" / "images"
TARGET = IMAGES / "overview.png"


def overview(images: Path = IMAGES) -> bytes:
    """Return the picture as PNG, the same bytes every time."""
    mask, gates = (matplotlib.image.imread(images / name) for name in ("mask.png", "allocation.png"))
    curves = gates[:, : gates.shape[1] // 2]
    widths = [picture.shape[1] / picture.shape[0] for picture in (mask, curves)]
    canvas, axes = plt.subplots(
        1, 2, figsize=(2.6 * sum(widths), 2.9), dpi=110, width_ratios=widths, layout="constrained"
    )
    titles = "a new scan and its mask, by the network that is left", "gates that training closed, for good"
    for axis, picture, title in zip(axes, (mask, curves), titles, strict=True):
        axis.imshow(picture, interpolation="antialiased")
        axis.set_title(title, fontsize=11)
        axis.set_axis_off()
    return png_bytes(canvas)


if __name__ == "__main__":
    write_file(TARGET, overview())
    print(f"wrote {TARGET.relative_to(ROOT)}")
