"""The section of a report on how the run's network works inside: what its bottom blocks add, where it attends."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from fheat.data.layouts import open_dataset
from fheat.figures.page import Section, page, paragraph, row, table
from fheat.figures.picture import save_figures
from fheat.figures.plots import Mark
from fheat.gates.cost import Cost, cost, giga
from fheat.gates.retire import retire
from fheat.gates.table import Allocation, GateRow, allocation
from fheat.inference.predictor import Predictor
from fheat.networks.registry import spec_of
from fheat.report.curves import losses, orders, strengths, validation
from fheat.report.gates import allocation_section, responses, summary
from fheat.report.pairing import probes_section
from fheat.report.perturbation import after_section, marks_of
from fheat.report.slices import scan_figure
from fheat.studies.inside.figures import map_pictures, pictures
from fheat.studies.inside.measure import analyse_run
from fheat.system.errors import BadInput
from fheat.system.files import check_file, check_folder, write_file
from fheat.system.progress import Progress, silent
from fheat.training.checkpoints import flattened
from fheat.training.runs import RunHistory, Saved, network_of, read_history

TITLE = "Inside the network"


def inside_section(run: Path, progress: Progress = silent) -> Section:
    """Return residual spectrum and attention over the validation scans of a run, or why they cannot be had."""
    try:
        analysis, planes = analyse_run(run, progress)
    except (BadInput, ValueError) as error:  # no network, no data, or one without such blocks or attention
        return Section(TITLE, paragraph(f"Left out: {error}."))
    maps = map_pictures(analysis, {0: planes})
    return Section(TITLE, row(*(one.html for one in pictures(analysis))) + "\n".join(one.html for one in maps))


NAME = "report.html"
SCANS = 3
"""Validation scans shown with contours."""
_LIBRARIES = ("torch", "numpy", "scipy", "safetensors", "matplotlib")


def write_report(
    run_folder: str | Path,
    out: str | Path | None = None,
    *,
    more: Sequence[Section] = (),
    figures: str | Path | None = None,
    scans: int = SCANS,
    inside: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write the report of a run, finished, interrupted or still going, and return its path.

    Args:
        run_folder: written by `fheat train`.
        out: file to write; `report.html` in the run folder if not given.
        more: sections to put after the allocation.
        figures: folder to write every figure of the page into, see `save_figures`.
        scans: how many validation scans to segment and show.
        inside: also run the network over all validation scans and show how it works inside.
        progress: called with the number of these done, and their total.

    The same run gives the same bytes with the same versions of the libraries.
    """
    if figures is not None:
        check_folder(Path(figures))
    record = read_history(Path(run_folder))
    target = Path(out) if out is not None else record.folder / NAME
    check_file(target)
    marks, saved = marks_of(record.settings.research), network_of(record, str(record.folder))
    gates = allocation(saved.model) if saved is not None else _logged_gates(record)
    where = f"the log at iteration {record.iterations[-1]:,}"
    if saved is not None:
        where = f"the network in {saved.part}, saved at iteration {saved.card.training.get('iteration', record.done):,}"
    costs = None if saved is None else (cost(spec_of(saved.model).build()), cost(retire(saved.model)))
    sections = [
        allocation_section(record, gates, where),
        *more,
        *_gates(record, gates, marks),
        _cost(record, costs),
        _training(record, marks),
        _slices(record, saved, scans, progress),
        *([inside_section(record.folder, progress)] if inside else []),
        _settings(record),
    ]
    saving = None if costs is None or saved is None else (str(saved.part), 1 - costs[1].macs / costs[0].macs)
    title = f"{record.settings.network.name}, {record.settings.method.name}, seed {record.settings.schedule.seed}"
    content = page(title, _lead(record), sections, summary(record, saving, gates.idle))
    write_file(target, content.encode())
    if figures is not None:
        save_figures(content, Path(figures))
    return target


def _lead(record: RunHistory) -> str:
    data, iterations = record.settings.data, record.settings.schedule.iterations
    state = "finished" if record.finished else "not finished: still going, or stopped"
    if record.done >= iterations and not record.finished:
        state = "done; its final network is not in this folder"
    words = f"Iteration {record.done:,} of {iterations:,}, {state}. Trained on {data.folder}"
    words += "" if data.labelled is None else f" with {data.labelled} labels"
    if record.speeds:
        words += f", {list(record.speeds.values())[-1]:.1f} iterations per second"
    return f"{words}."


def _no_network(record: RunHistory) -> str:
    if record.done >= record.settings.schedule.iterations:
        return "Needs the network, which is not in the run folder."
    return "The run has not saved a network yet."


def _logged_gates(record: RunHistory) -> Allocation:
    last = record.steps[-1]
    rows = []
    for site in record.sites:
        strength, alpha = last[f"D.{site}"], last[f"alpha.{site}"]
        state = "closed" if strength == 0 else "open"
        rows.append(GateRow(site, None, None, strength, alpha, strength**alpha, state, retired=False, macs=None))  # type: ignore[arg-type]
    return Allocation(rows)


def _gates(record: RunHistory, gates: Allocation, marks: Sequence[Mark]) -> list[Section]:
    """Return what the gates did over the iterations, after each disturbance, and under the probes, if any."""
    if not record.sites:
        return []
    drawn = row(strengths(record, marks), orders(record, marks), responses(gates))
    sections = [Section("Gates", drawn), *(after_section(record, mark) for mark in marks)]
    return [*sections, probes_section(record, marks)] if record.probes else sections


def _training(record: RunHistory, marks: Sequence[Mark]) -> Section:
    if not record.validations:
        return Section(
            "Training and metrics", row(losses(record, marks)) + paragraph("The run has not been validated.")
        )
    best, last = max(record.validations, key=lambda found: found.mean), record.validations[-1]
    head = ("scan", f"Dice at {best.iteration:,}, the best", f"Dice at {last.iteration:,}, the last")
    rows = [("mean", f"{best.mean:.4f}", f"{last.mean:.4f}")]
    for case, score in last.cases.items():
        rows.append((case, f"{best.cases[case]:.4f}" if case in best.cases else "", f"{score:.4f}"))
    return Section("Training and metrics", row(losses(record, marks), validation(record, marks)) + table(head, rows))


def _cost(record: RunHistory, costs: tuple[Cost, Cost] | None) -> Section:
    if costs is None:
        return Section("Cost", paragraph(_no_network(record)))
    before, after = costs
    counted = {"all gates open": before, "closed gates retired": after}
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


def _slices(record: RunHistory, saved: Saved | None, scans: int, progress: Progress) -> Section:
    title = "Validation scans"
    if saved is None:
        return Section(title, paragraph(_no_network(record)))
    try:
        cases = open_dataset(record.settings.data.folder).split("validation")[:scans]
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
    words = f"By the network in {saved.part}, full sliding window, no component removed."
    return Section(title, paragraph(words) + "\n".join(figures))


def _settings(record: RunHistory) -> Section:
    settings = [(name, str(value)) for name, value in flattened(record.settings).items()]
    versions = [("fheat", version("fheat")), ("Python", platform.python_version())]
    versions += [(name, version(name)) for name in _LIBRARIES]
    words = paragraph("Versions are those this page was written with.")
    tables = table(("setting", "value"), settings, long=True), table(("program", "version"), versions)
    return Section("Settings and versions", words + row(*tables))
