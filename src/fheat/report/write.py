"""The report of a run: one HTML page with everything that its folder, its network and its dataset tell."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fheat import __version__
from fheat.figures.page import PageSection, page, paragraph, row, table
from fheat.figures.picture import save_figures
from fheat.figures.plots import Mark
from fheat.gates.cost import Cost, cost, giga
from fheat.gates.hook import with_gates_of
from fheat.gates.retire import retire
from fheat.gates.table import Allocation, GateRow, allocation
from fheat.networks.registry import spec_of
from fheat.report.curves import losses, validation
from fheat.report.gates import allocation_section, gates_sections, summary
from fheat.report.scans import inside_section, validation_section
from fheat.studies.perturbation import perturbation_marks
from fheat.system.files import check_file, check_folder, write_file
from fheat.system.machine import installed_version
from fheat.system.progress import Progress, silent
from fheat.system.text import counted, grid_name
from fheat.training.checkpoints import flattened
from fheat.training.runs import Part, RunHistory, Saved, network_of, read_history

NAME = "report.html"
SCANS = 3
"""Number of validation scans that are shown with contours by default."""
_LIBRARIES = ("torch", "numpy", "scipy", "safetensors", "matplotlib")


@dataclass(frozen=True)
class Opening:
    """How a page begins where the run is part of something larger: its title, the outcome in a sentence, and sections.

    The sections come before the allocation.
    """

    title: str
    outcome: str
    sections: Sequence[PageSection]


def write_report(
    run_folder: str | Path,
    out: str | Path | None = None,
    *,
    opening: Opening | None = None,
    network: Part = "final",
    figures: str | Path | None = None,
    scans: int = SCANS,
    inside: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write the report of a run, finished, interrupted or still going, and return its path.

    Args:
        run_folder: folder written by `fheat train`.
        out: file to write; `report.html` in the run folder if not given.
        opening: what the page begins with, instead of the name of the run and a summary of its gates.
        network: which of the networks that the run left is shown, by default the one in which the curves of the gates
            end; the other one where there is only that.
        figures: folder to write every figure of the page into; see `save_figures`.
        scans: number of validation scans to segment and show.
        inside: whether the network is also run over all validation scans to show how it works inside.
        progress: called with the number of scans done and their total.

    The same run gives the same bytes with the same versions of the libraries.
    """
    if figures is not None:
        check_folder(Path(figures))
    history = read_history(Path(run_folder))
    target = Path(out) if out is not None else history.folder / NAME
    check_file(target)
    marks = perturbation_marks(history.settings.research)
    saved = network_of(history, str(history.folder), network)
    gates = allocation(saved.model) if saved is not None else _logged_gates(history)
    costs = None if saved is None else _costs(saved.model)
    sections = [
        *(() if opening is None else opening.sections),
        allocation_section(history, gates, _source(history, saved)),
        *gates_sections(history, gates, marks),
        _cost_section(history, costs),
        _training_section(history, marks),
        *([_scans_section(history, saved, scans, progress)] if scans or opening is None else []),
        *([_inside_section(history, saved, progress)] if inside else []),
        _settings_section(history),
    ]
    if opening is None:
        saving = None if costs is None or saved is None else (str(saved.part), 1 - costs[1].macs / costs[0].macs)
        opening = Opening(_title(history), summary(history, saving, gates.idle), ())
    content = page(opening.title, _lead(history), sections, opening.outcome)
    write_file(target, content.encode())
    if figures is not None:
        save_figures(content, Path(figures))
    return target


def _costs(model: nn.Module) -> tuple[Cost, Cost]:
    """Return the cost of a network before training, all gates open, and with its closed gates retired."""
    return cost(with_gates_of(spec_of(model).build(), model)), cost(retire(model))


def _title(history: RunHistory) -> str:
    settings = history.settings
    return f"{settings.network.name}, {settings.method.name}, seed {settings.schedule.seed}"


def _lead(history: RunHistory) -> str:
    """Return the sentences under the title: how far the run is, its data and its speed."""
    data, iterations = history.settings.data, history.settings.schedule.iterations
    state = "finished" if history.finished else "not finished: still going, or stopped"
    if history.done >= iterations and not history.finished:
        state = "done; its final network is not in this folder"
    words = f"Iteration {history.done:,} of {iterations:,}, {state}. Trained on {data.folder}"
    words += "" if data.labelled is None else f" with {counted(data.labelled, 'label')}"
    if history.speeds:
        words += f", {list(history.speeds.values())[-1]:.1f} iterations per second"
    return f"{words}."


def _no_network(history: RunHistory) -> str:
    """Return why a section that needs the network is left out."""
    if history.done >= history.settings.schedule.iterations:
        return "Needs the network, which is not in the run folder."
    return "The run has not saved a network yet."


def _source(history: RunHistory, saved: Saved | None) -> str:
    """Return what the allocation was read from, in words."""
    if saved is None:
        return f"the log at iteration {history.iterations[-1]:,}"
    return f"the network in {saved.part}, saved at iteration {saved.card.training.get('iteration', history.done):,}"


def _logged_gates(history: RunHistory) -> Allocation:
    """Return the gates as the last logged iteration has them; their grids and costs are not known."""
    last = history.steps[-1]
    rows = []
    for site in history.sites:
        strength, alpha = last[f"D.{site}"], last[f"alpha.{site}"]
        state = "closed" if strength == 0 else "open"
        rows.append(GateRow(site, None, None, strength, alpha, strength**alpha, state, retired=False, macs=None))  # type: ignore[arg-type]
    return Allocation(rows)


def _training_section(history: RunHistory, marks: Sequence[Mark]) -> PageSection:
    if not history.validations:
        return PageSection(
            "Training and metrics", row(losses(history, marks)) + paragraph("The run has not been validated.")
        )
    best, last = max(history.validations, key=lambda each: each.mean), history.validations[-1]
    head = ("scan", f"Dice at {best.iteration:,}, the best", f"Dice at {last.iteration:,}, the last")
    rows = [("mean", f"{best.mean:.4f}", f"{last.mean:.4f}")]
    for case, score in last.cases.items():
        rows.append((case, f"{best.cases[case]:.4f}" if case in best.cases else "", f"{score:.4f}"))
    return PageSection(
        "Training and metrics", row(losses(history, marks), validation(history, marks)) + table(head, rows)
    )


def _cost_section(history: RunHistory, costs: tuple[Cost, Cost] | None) -> PageSection:
    if costs is None:
        return PageSection("Cost", paragraph(_no_network(history)))
    before, after = costs
    head = ("", "parameters", "multiply-adds", "in transforms", "in the rest", "transforms by")
    rows = [
        (
            name,
            f"{counted.parameters:,}",
            f"{giga(counted.macs)} G",
            f"{giga(counted.transform)} G",
            f"{giga(counted.rest)} G",
            "/".join(counted.transforms) or "none",
        )
        for name, counted in (("all gates open", before), ("closed gates retired", after))
    ]
    words = (
        f"One forward pass on {grid_name(after.shape)}. Retiring takes {1 - after.macs / before.macs:.1%} of "
        f"the multiply-adds and changes no bit of the output. Counter: {after.counter}."
    )
    return PageSection("Cost before and after retirement", table(head, rows) + paragraph(words))


def _scans_section(history: RunHistory, saved: Saved | None, scans: int, progress: Progress) -> PageSection:
    if saved is None:
        return PageSection("Validation scans", paragraph(_no_network(history)))
    return validation_section(history, saved, scans, progress)


def _inside_section(history: RunHistory, saved: Saved | None, progress: Progress) -> PageSection:
    if saved is None:
        return PageSection("Inside the network", paragraph(f"Left out. {_no_network(history)}"))
    return inside_section(history, saved, progress)


def _settings_section(history: RunHistory) -> PageSection:
    settings = [(name, str(value)) for name, value in flattened(history.settings).items()]
    versions = [("fheat", __version__), ("Python", platform.python_version())]
    versions += [(name, installed_version(name) or "unknown") for name in _LIBRARIES]
    words = paragraph("Versions are those this page was written with.")
    tables = table(("setting", "value"), settings, long=True), table(("program", "version"), versions)
    return PageSection("Settings and versions", words + row(*tables))
