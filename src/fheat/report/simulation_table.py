"""A simulation in words and numbers: what was measured, beside the exact value and the paper's."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from fheat.metrics.layout import aligned
from fheat.report.simulation_record import Control, Even, EvenRun, Planted, PlantedRun, Simulation

PAPER: Final = {"mean": 0.248, "sd": 0.011, "planted": 1.12, "pairing": 1609, "even": 0.20, "concentrated": 6.35}
_HEAD: Final = ("control", "(a) exact", "D", "SD", "closed", "(b) planted D", "idle D", "idle at 0", "sign right")


def simulation_table(record: Simulation) -> str:
    """Return the record as lines to read, with a table of its controls."""
    blocks = [_interchangeable(record), _differentiated(record.differentiated), _remark(record)]
    if record.controls:
        lines = (control_cells(name, found) for name, found in record.controls.items())
        blocks.append(aligned([_HEAD, *lines]))
    return "\n\n".join(blocks)


def span(values: Iterable[float], digits: str) -> str:
    """Return `low to high` in a format such as `.4f`, or one number where both read the same."""
    each = list(values)
    low, high = format(min(each), digits), format(max(each), digits)
    return low if low == high else f"{low} to {high}"


def planted_values(runs: Sequence[PlantedRun], field: Literal["D", "pairing"]) -> list[float]:
    """Return `D` or `pairing` of the planted site of every run."""
    return [_values(run, field)[run.planted - 1] for run in runs]


def idle_values(runs: Sequence[PlantedRun], field: Literal["D", "pairing"]) -> list[float]:
    """Return `D` or `pairing` of the sites that are to return their signal, of every run."""
    return [value for run in runs for site, value in enumerate(_values(run, field), start=1) if site != run.planted]


def _interchangeable(record: Simulation) -> str:
    settings, found = record.settings, record.interchangeable
    runs = found.runs
    return (
        f"(a) {settings.sites} interchangeable gates in a chain, one low-pass target of D = "
        f"{settings.shared_strength:g} at alpha = {settings.alpha:g}, {len(runs)} seeds\n"
        f"  D at the end: mean {_of(runs, 'mean')}, SD {_of(runs, 'sd')}, {found.closed} closed\n"
        f"  exact share {found.exact:.4f}; paper {PAPER['mean']} +- {PAPER['sd']}; "
        f"SD at the start {_of(runs, 'start_sd')}"
    )


def _differentiated(found: Planted) -> str:
    runs = found.runs
    without_pairing = sum(value == 0 for value in idle_values(runs, "pairing"))
    apart = max(abs(value - run.best) for value, run in zip(planted_values(runs, "D"), runs, strict=True))
    return (
        f"(b) one site of {len(runs[0].D)} is to blur, the others are to return their signal, {len(runs)} runs\n"
        f"  pairing P before training: exactly 0 at {without_pairing} of {found.idle} idle sites, "
        f"{span(planted_values(runs, 'pairing'), '.0f')} at the planted one (paper: about {PAPER['pairing']})\n"
        f"  D at the end: exactly 0 at {found.idle_closed} of {found.idle} idle sites, "
        f"{span(planted_values(runs, 'D'), '.3f')} at the planted one (paper: {PAPER['planted']}), "
        f"at most {apart:.1e} from its best fit\n"
        f"  the sign of P predicts survival at {found.predicted} of {found.sites} sites"
    )


def _remark(record: Simulation) -> str:
    found = record.remark_3
    return (
        f"Remark 3: sum D^2 of a total time {found.time:g} is {found.even:.4f} shared evenly and "
        f"{found.concentrated:.4f} at one gate (paper: {PAPER['even']:.2f} and {PAPER['concentrated']})"
    )


def control_cells(name: str, found: Control) -> tuple[str, ...]:
    """Return the row of one control, a cell for each column; empty where an experiment was not part of it."""
    even, planted = found.interchangeable, found.differentiated
    return (name, *(_even_cells(even) if even else [""] * 4), *(_planted_cells(planted) if planted else [""] * 4))


def _even_cells(found: Even) -> tuple[str, ...]:
    runs = found.runs
    return f"{found.exact:.4f}", _of(runs, "mean"), _of(runs, "sd"), f"{found.closed} of {found.gates}"


def _planted_cells(found: Planted) -> tuple[str, ...]:
    least, largest = found.smallest_idle, found.largest_idle
    return (
        span(planted_values(found.runs, "D"), ".3f"),
        "0" if largest == 0 else span([least, largest], ".1e"),
        f"{found.idle_closed} of {found.idle}",
        f"{found.predicted} of {found.sites}",
    )


def _of(runs: Sequence[EvenRun], field: Literal["mean", "sd", "start_sd"]) -> str:
    return span((getattr(run, field) for run in runs), ".4f")


def _values(run: PlantedRun, field: Literal["D", "pairing"]) -> tuple[float, ...]:
    return run.D if field == "D" else run.pairing
