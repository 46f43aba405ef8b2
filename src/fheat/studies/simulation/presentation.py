"""A simulation for readers: lines and a table of numbers beside the exact values, and the picture (Fig. 3)."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from fheat.figures.plots import plt, png_bytes
from fheat.studies.simulation.record import (
    Control,
    Curves,
    Differentiated,
    DifferentiatedRun,
    Interchangeable,
    InterchangeableRun,
    Simulation,
)
from fheat.system.text import aligned

PICTURE: Final = "simulation.png"
PAPER: Final = {"mean": 0.248, "sd": 0.011, "planted": 1.12, "pairing": 1609, "even": 0.20, "concentrated": 6.35}
"""Values that the paper prints."""
_HEAD: Final = ("control", "(a) exact", "D", "SD", "closed", "(b) planted D", "idle D", "idle at 0", "sign right")
_PLANTED_COLOUR: Final = "tab:red"
_IDLE_COLOUR: Final = "tab:gray"


def simulation_table(record: Simulation) -> str:
    """Return the record as lines of text, with a table of its controls."""
    blocks = [_interchangeable(record), _differentiated(record.differentiated), _remark(record)]
    if record.controls:
        lines = (control_cells(name, control) for name, control in record.controls.items())
        blocks.append(aligned([_HEAD, *lines]))
    return "\n\n".join(blocks)


def span(values: Iterable[float], digits: str) -> str:
    """Return `low to high` in a format such as `.4f`, or one number where both read the same."""
    each = list(values)
    low, high = format(min(each), digits), format(max(each), digits)
    return low if low == high else f"{low} to {high}"


def planted_values(runs: Sequence[DifferentiatedRun], field: Literal["D", "pairing"]) -> list[float]:
    """Return `D` or `pairing` of the planted site of every run."""
    return [_values(run, field)[run.planted - 1] for run in runs]


def idle_values(runs: Sequence[DifferentiatedRun], field: Literal["D", "pairing"]) -> list[float]:
    """Return `D` or `pairing` of the idle sites of every run."""
    return [value for run in runs for site, value in enumerate(_values(run, field), start=1) if site != run.planted]


def _interchangeable(record: Simulation) -> str:
    settings, result = record.settings, record.interchangeable
    runs = result.runs
    return (
        f"(a) {settings.sites} interchangeable gates in a chain, one low-pass target of D = "
        f"{settings.shared_strength:g} at alpha = {settings.alpha:g}, {len(runs)} seeds\n"
        f"  D at the end: mean {_range_of(runs, 'mean')}, SD {_range_of(runs, 'sd')}, {result.closed} closed\n"
        f"  exact share {result.exact:.4f}; paper {PAPER['mean']} +- {PAPER['sd']}; "
        f"SD at the start {_range_of(runs, 'start_sd')}"
    )


def _differentiated(result: Differentiated) -> str:
    runs = result.runs
    without_pairing = sum(value == 0 for value in idle_values(runs, "pairing"))
    apart = max(abs(value - run.best) for value, run in zip(planted_values(runs, "D"), runs, strict=True))
    return (
        f"(b) one site of {len(runs[0].D)} is to blur, the others are to return their signal, {len(runs)} runs\n"
        f"  pairing P before training: exactly 0 at {without_pairing} of {result.idle} idle sites, "
        f"{span(planted_values(runs, 'pairing'), '.0f')} at the planted one (paper: about {PAPER['pairing']})\n"
        f"  D at the end: exactly 0 at {result.idle_closed} of {result.idle} idle sites, "
        f"{span(planted_values(runs, 'D'), '.3f')} at the planted one (paper: {PAPER['planted']}), "
        f"at most {apart:.1e} from its best fit\n"
        f"  the sign of P predicts survival at {result.predicted} of {result.sites} sites"
    )


def _remark(record: Simulation) -> str:
    remark = record.remark_3
    return (
        f"Remark 3: sum D^2 of a total time {remark.time:g} is {remark.even:.4f} shared evenly and "
        f"{remark.concentrated:.4f} at one gate (paper: {PAPER['even']:.2f} and {PAPER['concentrated']})"
    )


def control_cells(name: str, control: Control) -> tuple[str, ...]:
    """Return the row of one control, with empty cells where an experiment is not part of it."""
    shared, planted = control.interchangeable, control.differentiated
    return (
        name,
        *(_interchangeable_cells(shared) if shared else [""] * 4),
        *(_differentiated_cells(planted) if planted else [""] * 4),
    )


def _interchangeable_cells(result: Interchangeable) -> tuple[str, ...]:
    runs = result.runs
    return f"{result.exact:.4f}", _range_of(runs, "mean"), _range_of(runs, "sd"), f"{result.closed} of {result.gates}"


def _differentiated_cells(result: Differentiated) -> tuple[str, ...]:
    least, largest = result.smallest_idle, result.largest_idle
    return (
        span(planted_values(result.runs, "D"), ".3f"),
        "0" if largest == 0 else span([least, largest], ".1e"),
        f"{result.idle_closed} of {result.idle}",
        f"{result.predicted} of {result.sites}",
    )


def _range_of(runs: Sequence[InterchangeableRun], field: Literal["mean", "sd", "start_sd"]) -> str:
    return span((getattr(run, field) for run in runs), ".4f")


def _values(run: DifferentiatedRun, field: Literal["D", "pairing"]) -> tuple[float, ...]:
    return run.D if field == "D" else run.pairing


def simulation_picture(record: Simulation) -> bytes:
    """Return the PNG of a record with its panels side by side; without controls the last panel is left out."""
    last = record.trajectories.iterations[-1]
    panels = [_draw_interchangeable, _draw_differentiated, *([_draw_locking] if record.trajectories.softplus else [])]
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


def _draw_interchangeable(axes: Any, record: Simulation) -> None:
    shown, result = record.trajectories, record.interchangeable
    for site, values in enumerate(_by_site(shown.interchangeable)):
        axes.plot(shown.iterations, values, color="tab:blue", alpha=0.7, label="eight gates" if site == 0 else None)
    axes.axhline(result.exact, color="black", linestyle=":", label=f"even share {result.exact:.3g}")
    title = f"(a) interchangeable: D = {result.runs[0].mean:.3f} ± {result.runs[0].sd:.3f}"
    axes.set(title=title, ylabel="strength D", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _draw_differentiated(axes: Any, record: Simulation) -> None:
    shown, run = record.trajectories, record.shown
    label: str | None = f"target = signal, P = 0: D = {max(idle_values([run], 'D')):.3g}"
    for site, values in enumerate(_by_site(shown.differentiated), start=1):
        if site != run.planted:
            axes.plot(shown.iterations, values, color=_IDLE_COLOUR, label=label)
            label = None
    planted = run.planted - 1
    label = f"site {run.planted}, P = {run.pairing[planted]:.0f}: D = {run.D[planted]:.3f}"
    axes.plot(shown.iterations, _by_site(shown.differentiated)[planted], color=_PLANTED_COLOUR, label=label)
    axes.axhline(run.best, color="black", linestyle=":", label=f"best fit {run.best:.3f}")
    axes.set(title="(b) differentiated: one site is to blur", ylabel="strength D", ylim=(-0.02, None))
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, 0.92))


def _draw_locking(axes: Any, record: Simulation) -> None:
    shown = record.trajectories
    assert shown.softplus is not None
    assert shown.exp is not None
    idle = 0 if shown.planted != 1 else 1
    ends = []
    for name, curves, colour in (
        ("relu", shown.differentiated, _IDLE_COLOUR),
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
    """Return curves (kept, sites) as (sites, kept)."""
    return [list(values) for values in zip(*rows, strict=True)]
