"""Pictures of the gates: how their strengths moved, and what each does to a frequency."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

from fheat.allocation.table import Allocation

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def save_allocation_figure(table: Allocation, history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw D of every gate over the steps, and its final response exp(-(D r)^alpha), into a PNG.

    A closed gate is the flat line at one. `history` has D by site, before the first step and after every one.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), dpi=120, layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(table)))
    radius = np.linspace(0, np.pi * np.sqrt(3), 200)
    for colour, row in zip(colours, table, strict=True):
        closed = row.D == 0
        style = {
            "color": colour,
            "linestyle": "--" if closed else "-",
            "label": f"{row.site}{' (closed)' if closed else ''}",
        }
        left.plot([strengths[row.site] for strengths in history], **style)
        right.plot(radius, np.exp(-((row.D * radius) ** row.alpha)), **style)
    left.set(xlabel="optimiser step", ylabel="strength D", title="training moves the gates")
    right.set(xlabel="frequency radius r", ylabel="response", ylim=(0, 1.05), title="what each gate does")
    right.legend(fontsize=8, ncols=2)
    figure.savefig(path)
    plt.close(figure)
