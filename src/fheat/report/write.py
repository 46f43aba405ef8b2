"""`report.html`: what a run did and what it left, on one page, from its folder alone."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from torch import nn

from fheat.allocation.cost import cost, giga
from fheat.allocation.retire import retire
from fheat.allocation.table import Allocation, Row, allocation
from fheat.data.layouts import open_dataset
from fheat.errors import BadInput
from fheat.files import write_file
from fheat.inference.predictor import Predictor
from fheat.models.folder import load
from fheat.models.registry import recipe_of
from fheat.report.curves import losses, orders, strengths, validation
from fheat.report.page import Section, page, paragraph, row, table
from fheat.report.record import Record, read_record
from fheat.report.slices import scan_figure
from fheat.report.spectral import responses

NAME = "report.html"
SCANS = 3
"""Validation scans shown with contours."""
_LIBRARIES = ("torch", "numpy", "scipy", "safetensors", "matplotlib")


@dataclass(frozen=True)
class _Saved:
    """The network a run left, where it lies, and when it was saved."""

    model: nn.Module
    name: str
    iteration: int


def write_report(
    run_folder: str | Path,
    out: str | Path | None = None,
    *,
    more: Sequence[Section] = (),
    scans: int = SCANS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the report of a run, finished, interrupted or still going, and return its path.

    Args:
        run_folder: written by `fheat train`.
        out: file to write; `report.html` in the run folder if not given.
        more: sections to put after the allocation.
        scans: how many validation scans to segment and show.
        progress: called with the number of these done, and their total.

    The same run gives the same bytes with the same versions of the libraries.
    """
    record = read_record(Path(run_folder))
    saved = _saved(record)
    gates = allocation(saved.model) if saved is not None else _logged_gates(record)
    sections = [_allocation(record, gates, saved), *more, _training(record)]
    if record.sites:
        sections.append(Section("Gates", row(strengths(record), orders(record), responses(gates))))
    sections += [_cost(saved), _slices(record, saved, scans, progress), _settings(record)]
    config = record.config
    state = "finished" if record.finished else "not finished: still going, or stopped"
    title = f"{config.network}, {config.method}, seed {config.seed}"
    lead = f"Iteration {record.done:,} of {config.iterations:,}, {state}. Trained on {config.data}."
    target = Path(out) if out is not None else record.folder / NAME
    write_file(target, page(title, lead, sections).encode())
    return target


def _saved(record: Record) -> _Saved | None:
    """Return the final network of a finished run, the best so far of another, None where none is saved yet."""
    for name in ("final", "best") if record.finished else ("best",):
        if (record.folder / name).is_dir():
            model = load(record.folder / name)
            iteration = getattr(model, "card").training.get("iteration", record.done)  # noqa: B009 - set by load
            return _Saved(model, name, int(iteration))
    return None


def _logged_gates(record: Record) -> Allocation:
    last = record.steps[-1]
    rows = []
    for site in record.sites:
        strength, alpha = last[f"D.{site}"], last[f"alpha.{site}"]
        state = "closed" if strength == 0 else "open"
        rows.append(Row(site, None, None, strength, alpha, strength**alpha, state, retired=False, macs=None))  # type: ignore[arg-type]
    return Allocation(rows)


def _allocation(record: Record, gates: Allocation, saved: _Saved | None) -> Section:
    if not gates:
        return Section("Allocation", paragraph(f"{record.config.network} has no gates."))
    where = f"the log at iteration {record.iterations[-1]:,}"
    if saved is not None:
        where = f"the network in {saved.name}, saved at iteration {saved.iteration:,}"
    closed = len(gates) - len(gates.open)
    words = f"{closed} of {len(gates)} gates are closed"
    words += f"; open: {', '.join(gates.open)}." if gates.open else "; none is open."
    head = ("site", "grid", "channels", "D", "alpha", "tau", "state", "closed for good at", "multiply-adds")
    rows = []
    for gate in gates:
        at = record.closed_at(gate.site) if gate.site in record.sites else None
        rows.append(
            (
                gate.site,
                "" if gate.grid is None else "x".join(map(str, gate.grid)),
                "" if gate.channels is None else str(gate.channels),
                *(f"{value:.4f}" for value in (gate.D, gate.alpha, gate.tau)),
                gate.state,
                "" if at is None else f"{at:,}",
                "" if gate.macs is None else f"{gate.macs:,}",
            )
        )
    return Section("Allocation", paragraph(f"{words} Read from {where}.") + table(head, rows))


def _training(record: Record) -> Section:
    if record.validations:
        return Section("Training", row(losses(record), validation(record)))
    return Section("Training", row(losses(record)) + paragraph("The run has not been validated."))


def _cost(saved: _Saved | None) -> Section:
    if saved is None:
        return Section("Cost", paragraph("The run has not saved a network yet."))
    counted = {
        "all gates open": cost(recipe_of(saved.model).build()),
        "closed gates retired": cost(retire(saved.model)),
    }
    before, after = counted.values()
    head = ("", "parameters", "multiply-adds", "in transforms", "in the rest", "transforms by")
    rows = [
        (
            name,
            f"{one.parameters:,}",
            f"{giga(one.macs)} G",
            f"{giga(one.transform)} G",
            f"{giga(one.rest)} G",
            "/".join(one.transforms) or "none",
        )
        for name, one in counted.items()
    ]
    words = (
        f"One forward pass on {'x'.join(map(str, after.shape))}. Retiring takes {1 - after.macs / before.macs:.1%} of "
        f"the multiply-adds and changes no bit of the output. Counter: {after.counter}."
    )
    return Section("Cost before and after retirement", table(head, rows) + paragraph(words))


def _slices(record: Record, saved: _Saved | None, scans: int, progress: Callable[[int, int], None]) -> Section:
    title = "Validation scans"
    if saved is None:
        return Section(title, paragraph("The run has not saved a network yet."))
    try:
        cases = open_dataset(record.config.data).split("validation")[:scans]
        predictor = Predictor(saved.model)
        figures = []
        for done, case in enumerate(cases, start=1):
            figures.append(scan_figure(predictor, case))
            progress(done, len(cases))
    except BadInput as error:
        return Section(title, paragraph(f"Left out, because the dataset of the run cannot be read: {error}."))
    except ValueError as error:  # scans of other channels than the network's, or weights that diverged
        return Section(title, paragraph(f"Left out, because the network cannot segment them: {error}."))
    if not figures:
        return Section(title, paragraph("Left out: the dataset has no validation scans, or none were asked for."))
    words = f"By the network in {saved.name}, full sliding window, no component removed."
    return Section(title, paragraph(words) + "\n".join(figures))


def _settings(record: Record) -> Section:
    settings = [(name, str(value)) for name, value in record.config.model_dump(mode="json").items()]
    versions = [("fheat", version("fheat")), ("Python", platform.python_version())]
    versions += [(name, version(name)) for name in _LIBRARIES]
    words = paragraph("Versions are those this page was written with.")
    body = table(("setting", "value"), settings) + words + table(("program", "version"), versions)
    return Section("Settings and versions", body)
