"""Draw the figures of docs/concepts that explain the gate: `python tools/concept_figures.py`, or `make figures`.

`gate-multiplier.svg` is the multiplier over the frequency, `gate-signals.svg` what a gate does to a step and to a
point, `gate-absorbing.svg` two gates that are trained while the target changes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import tyro
from results import ROOT
from torch import Tensor

from fheat import FractionalHeat
from fheat.figures.picture import standalone
from fheat.figures.plots import Mark, colours, draw_marks, plot
from fheat.system.files import write_file

STRENGTHS = (0.0, 0.03, 0.3, 1.0, 4.0)
ORDERS = (0.3, 0.6, 0.9)
SAMPLES, CHANGE, STEPS = 64, 300, 900
"""Length of a signal; step at which the target of the training changes; number of steps."""


def multiplier(strength: float, alpha: float, radius: Tensor) -> Tensor:
    """Return exp(-(D r)^alpha) at the frequencies r; all ones for D = 0."""
    return torch.exp(-((strength * radius) ** alpha)) if strength else torch.ones_like(radius)


def multiplier_figure() -> str:
    """Return the multiplier over the frequency: for several strengths, and for several orders."""
    radius = torch.linspace(0, torch.pi, 400)
    words = "Multiplier over frequency, for several strengths D and for several orders alpha"
    with plot("gate-multiplier", words, panels=2, size=(8.6, 3.2)) as drawing:
        for axes, lines in (
            (drawing.panels[0], [(strength, 0.6, f"D = {strength:g}") for strength in STRENGTHS]),
            (drawing.panels[1], [(1.0, alpha, f"alpha = {alpha:g}") for alpha in ORDERS]),
        ):
            for (strength, alpha, label), colour in zip(lines, colours(len(lines)), strict=True):
                values = multiplier(strength, alpha, radius)
                axes.plot(radius, values, color=colour)
                axes.text(torch.pi + 0.06, float(values[-1]), label, color=colour, va="center", fontsize=8.5)
            axes.set(xlabel="frequency r", ylim=(-0.02, 1.04), xlim=(0, torch.pi))
        drawing.panels[0].set(ylabel="multiplier", title="alpha = 0.6")
        drawing.panels[1].set(title="D = 1")
    return standalone(drawing.svg)


def signals_figure() -> str:
    """Return what a gate does to a step and to a single point, for several strengths."""
    step, point = torch.zeros(2, SAMPLES)
    step[SAMPLES // 2 :], point[SAMPLES // 2] = 1, 1
    words = "A step and a single point after gates of several strengths"
    with plot("gate-signals", words, panels=2, size=(8.6, 3.2)) as drawing:
        for strength, colour in zip(STRENGTHS, colours(len(STRENGTHS)), strict=True):
            gate = FractionalHeat(dims=1, alpha=0.6, strength=strength)
            for axes, signal in zip(drawing.panels, (step, point), strict=True):
                axes.plot(gate(signal[None])[0].detach(), color=colour, label=f"D = {strength:g}")
        drawing.panels[0].set(xlabel="sample", ylabel="value", title="a step")
        drawing.panels[1].set(xlabel="sample", title="a single point", ylim=(-0.02, 0.5))
        drawing.panels[0].legend(loc="upper left")
    return standalone(drawing.svg)


def trained_strengths(kinds: Sequence[str], *, steps: int = STEPS, change: int = CHANGE) -> Mapping[str, list[float]]:
    """Return the strength D after each step of AdamW, for gates with these parameterisations of the strength.

    Every gate is fitted to the signal itself until step `change`, and then to the signal after a gate with D = 1.
    Before that step the best gate is the identity, and afterwards a closed gate has a positive pairing: the loss would
    fall if it opened.
    """
    signal = torch.randn(16, SAMPLES, generator=torch.Generator().manual_seed(0))
    blurred = FractionalHeat(dims=1, alpha=0.6, strength=1.0)(signal).detach()
    strengths: dict[str, list[float]] = {}
    for kind in kinds:
        gate = FractionalHeat(dims=1, alpha=0.6, strength=kind, initial_strength=0.3)  # type: ignore[arg-type]
        optimiser = torch.optim.AdamW(gate.parameters(), lr=0.02, weight_decay=1e-4)
        strengths[kind] = [gate.strength.item()]
        for number in range(steps):
            optimiser.zero_grad()
            (gate(signal) - (signal if number < change else blurred)).square().mean().backward()
            optimiser.step()
            strengths[kind].append(gate.strength.item())
    return strengths


def absorbing_figure() -> str:
    """Return the strength of two gates over the steps of a training whose target changes."""
    marks: list[Mark] = [(CHANGE, "the target needs mixing from here on")]
    names = {"relu": "D = relu(delta), the gate", "softplus": "D = softplus(delta), for comparison"}
    with plot("gate-absorbing", "Strength of two gates over the steps of a training", size=(6.4, 3.2)) as drawing:
        for (kind, values), colour in zip(trained_strengths(list(names)).items(), colours(2), strict=True):
            drawing.axes.plot(values, color=colour, label=names[kind])
        draw_marks(drawing.axes, marks)
        drawing.axes.set(xlabel="step", ylabel="strength D", xlim=(0, STEPS))
        drawing.legend()
    return standalone(drawing.svg)


def main(out: Annotated[Path, tyro.conf.arg(help="folder")] = ROOT / "docs" / "images") -> None:
    """Write the figures into a folder."""
    figures = {"multiplier": multiplier_figure, "signals": signals_figure, "absorbing": absorbing_figure}
    for name, draw in figures.items():
        write_file(out / f"gate-{name}.svg", draw().encode())


if __name__ == "__main__":
    tyro.cli(main)
