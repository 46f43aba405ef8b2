"""The picture of a simulation, as Fig. 3 of the paper: interchangeable gates, one planted site, strengths that lock."""

from typing import Any

from fheat.report.canvas import plt, png_bytes
from fheat.report.simulation_record import Curves, Simulation
from fheat.report.simulation_table import idle_values

PICTURE = "simulation.png"
_PLANTED = "tab:red"
_IDLE = "tab:gray"


def simulation_picture(record: Simulation) -> bytes:
    """Return the PNG of a record, its panels side by side; without controls the last one is left out."""
    last = record.trajectories.iterations[-1]
    panels = [_interchangeable, _differentiated, *([_locking] if record.trajectories.softplus else [])]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.7 * len(panels), 3.7), dpi=120, layout="constrained")
    for each, draw in zip(axes, panels, strict=True):
        draw(each, record)
        each.set_xscale("symlog", linthresh=1)
        ticks = [0, *(10**power for power in range(8) if 10**power <= last)]
        each.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        each.set(xlabel="iteration", xlim=(0, last))
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25)
    return png_bytes(figure)


def _interchangeable(axes: Any, record: Simulation) -> None:
    shown, found = record.trajectories, record.interchangeable
    for site, values in enumerate(_by_site(shown.interchangeable)):
        axes.plot(shown.iterations, values, color="tab:blue", alpha=0.7, label="eight gates" if site == 0 else None)
    axes.axhline(found.exact, color="black", linestyle=":", label=f"even share {found.exact:.3g}")
    title = f"(a) interchangeable: D = {found.runs[0].mean:.3f} ± {found.runs[0].sd:.3f}"
    axes.set(title=title, ylabel="strength D", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _differentiated(axes: Any, record: Simulation) -> None:
    shown, run = record.trajectories, record.shown
    label: str | None = f"target = signal, P = 0: D = {max(idle_values([run], 'D')):.3g}"
    for site, values in enumerate(_by_site(shown.differentiated), start=1):
        if site != run.planted:
            axes.plot(shown.iterations, values, color=_IDLE, label=label)
            label = None
    planted = run.planted - 1
    label = f"site {run.planted}, P = {run.pairing[planted]:.0f}: D = {run.D[planted]:.3f}"
    axes.plot(shown.iterations, _by_site(shown.differentiated)[planted], color=_PLANTED, label=label)
    axes.axhline(run.best, color="black", linestyle=":", label=f"best fit {run.best:.3f}")
    axes.set(title="(b) differentiated: one site is to blur", ylabel="strength D", ylim=(-0.02, None))
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, 0.92))


def _locking(axes: Any, record: Simulation) -> None:
    shown = record.trajectories
    assert shown.softplus is not None
    assert shown.exp is not None
    idle = 0 if shown.planted != 1 else 1
    ends = []
    for name, curves, colour in (
        ("relu", shown.differentiated, _IDLE),
        ("softplus", shown.softplus, "tab:green"),
        ("exp", shown.exp, "tab:orange"),
    ):
        values = _by_site(curves)[idle]
        style = "--" if name == "exp" else "-"
        label = f"{name}: {values[-1]:.1e}" if values[-1] else f"{name}: exactly 0"
        axes.plot(shown.iterations, values, style, color=colour, label=label)
        ends += [value for value in values if value > 0]
    axes.set(title="(c) a site with P = 0, by kind of strength", ylabel="strength D")
    least = min(ends, default=1.0)
    axes.set_yscale("symlog", linthresh=least)
    axes.set_ylim(-0.2 * least, None)
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 0.12))


def _by_site(rows: Curves) -> list[list[float]]:
    """Turn (kept, sites) into (sites, kept)."""
    return [list(values) for values in zip(*rows, strict=True)]
