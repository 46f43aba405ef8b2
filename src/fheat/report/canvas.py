"""Matplotlib without a screen, and a drawing as a PNG: the same bytes every time, nothing left open."""

from io import BytesIO

import matplotlib
from matplotlib.figure import Figure

matplotlib.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["plt", "png_bytes"]


def png_bytes(figure: Figure) -> bytes:
    """Return a figure of `plt` as PNG and close it."""
    page = BytesIO()
    try:
        figure.savefig(page, format="png", metadata={"Software": None})
    finally:
        plt.close(figure)
    return page.getvalue()
