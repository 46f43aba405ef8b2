"""Fig. 2, 3 and 7: what is drawn or measured without training a network. Measurements are stored and not repeated."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fheat import __version__
from fheat.data.layouts import open_dataset
from fheat.experiments.items.presented import Presented, notes_on, published_sheet
from fheat.experiments.plan import Plan, remedy
from fheat.experiments.records import Item, datasets
from fheat.experiments.row_result import RowResult
from fheat.experiments.sheet import NOTHING, Number
from fheat.figures.architecture import architecture_picture
from fheat.figures.picture import png_picture
from fheat.gates.architecture import architecture
from fheat.metrics.statistics import TEST, MeanAndDeviation, moments
from fheat.networks.registry import create_model
from fheat.ops.gates import gates_of
from fheat.studies.contrast import (
    BETWEEN,
    ContrastRecord,
    contrast_picture,
    measure_contrast,
    read_contrast,
    regions_of,
)
from fheat.studies.simulation.experiments import SimulationPlan, simulate
from fheat.studies.simulation.presentation import idle_values, planted_values, simulation_picture
from fheat.studies.simulation.record import FORMAT, Simulation, read_simulation
from fheat.system.files import write_file
from fheat.system.machine import machine

NETWORK = "fheat_seg"
"""Network whose architecture Fig. 2 shows."""


def state_without_training(item: Item, plan: Plan) -> str:
    """Return the state of an item without rows in words."""
    if item.kind == "contrast" and item.dataset not in plan.data:
        return f"no data ({datasets()[str(item.dataset)].title})"
    stored = {"simulation": _simulation_file, "contrast": _contrast_file}.get(item.kind)
    path = plan.out / f"{item.name}.md" if stored is None else stored(item, plan)
    return "done" if path.is_file() else "not run yet"


def present_diagram(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the architecture of FHEAT-Seg, drawn from the network itself, and the counts that the paper states."""
    model = create_model(NETWORK)
    drawn = architecture(model)
    ours = {"parameters, M": drawn.parameters / 1e6, "gates": len(gates_of(model)), "levels": len(drawn.levels)}
    numbers = tuple(Number("", name, value, moments([ours[name]])) for name, value in item.published.items())
    picture = architecture_picture(drawn, item.name)
    return Presented((published_sheet(item, numbers),), numbers, (picture,), tuple(notes_on(item, results, plan)))


def present_simulation(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the numbers of gates trained on plain signals beside the published ones, and the figure."""
    path = _simulation_file(item, plan)
    record = read_simulation(path)[0] if path.is_file() else _simulated(path, _simulation_of(plan))
    ours = _simulated_quantities(record)
    numbers = [Number("", name, published, ours[name]) for name, published in item.published.items()]
    sheet = published_sheet(item, numbers)
    caption = f"{item.title}. {'; '.join(f'{row[0]} {row[1]}' for row in sheet.rows)}."
    picture = png_picture(item.name, simulation_picture(record), caption)
    return Presented((sheet,), tuple(numbers), (picture,), tuple(notes_on(item, results, plan)))


def _simulation_of(plan: Plan) -> SimulationPlan:
    """Return the settings of the simulation: the paper's, or few iterations where everything is tiny."""
    if plan.tiny is not None:
        return SimulationPlan(seeds=1, iterations=20)
    return SimulationPlan() if plan.seeds is None else SimulationPlan(seeds=len(plan.seeds))


def _simulation_file(item: Item, plan: Plan) -> Path:
    """Return where the simulation with these settings is stored."""
    chosen = _simulation_of(plan)
    return plan.out / "measured" / f"{item.name}-{chosen.seeds}-seeds-{chosen.iterations}-iterations.json"


def _simulated(path: Path, plan: SimulationPlan) -> Simulation:
    began = time.perf_counter()
    results = simulate(plan, controls=False)
    command = f"fheat simulate --seeds {plan.seeds} --iterations {plan.iterations} --no-controls"
    head = {"format": FORMAT, "command": command, "machine": machine(), "seed": list(range(plan.seeds))}
    content = {**head, "seconds": round(time.perf_counter() - began, 1), **results}
    record = Simulation.model_validate(content)
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())
    return record


def _simulated_quantities(record: Simulation) -> dict[str, MeanAndDeviation]:
    """Return our numbers by the names of the published ones; those of several runs with their deviation."""
    shared, planted, remark = record.interchangeable, record.differentiated, record.remark_3
    first = shared.runs[0]
    return {
        "mean D of interchangeable gates": MeanAndDeviation(first.mean, first.sd, len(first.D)),
        "interchangeable gates closed": moments([shared.closed]),
        "pairing at the planted site": moments(planted_values(planted.runs, "pairing")),
        "D at the planted site": moments(planted_values(planted.runs, "D")),
        "largest D of another site": moments([max(idle_values(planted.runs, "D"))]),
        "sum D^2 shared evenly": moments([remark.even]),
        "sum D^2 at one gate": moments([remark.concentrated]),
    }


def present_contrast(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the image gradient along the boundaries of two tumour regions, beside the published numbers.

    Without data only the published ones are shown.
    """
    if item.dataset not in plan.data:
        problem = f"no data: {remedy(str(item.dataset))}"
        missing = [Number("", name, value, state=problem) for name, value in item.published.items()]
        return Presented((published_sheet(item, missing),), tuple(missing), notes=tuple(notes_on(item, results, plan)))
    path = _contrast_file(item, plan)
    record = read_contrast(path) if path.is_file() else _measured(path, plan.data[str(item.dataset)])
    ours = _measured_quantities(record)
    numbers = tuple(Number("", name, value, ours.get(name, NOTHING)) for name, value in item.published.items())
    notes = (*notes_on(item, results, plan), f"{len(record.cases)} scans; p: {TEST}, here without correction.")
    drawn = replace(contrast_picture(record), file=f"{item.name}.svg")
    return Presented((published_sheet(item, numbers),), numbers, (drawn,), notes)


def _contrast_file(item: Item, plan: Plan) -> Path:
    """Return where the measurement of the scans that are given is stored."""
    cases = [case for case in open_dataset(plan.data[str(item.dataset)]).cases if case.label is not None]
    files = [file for case in cases for file in (*case.images, case.label) if file is not None]
    facts = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return plan.out / "measured" / f"{item.name}-{hashlib.sha256('/'.join(facts).encode()).hexdigest()[:12]}.json"


def _measured(path: Path, folder: Path) -> ContrastRecord:
    dataset = open_dataset(folder)
    record = measure_contrast(dataset, regions_of(dataset), BETWEEN, fheat=__version__)
    write_file(path, (json.dumps(record.content(), indent=1) + "\n").encode())
    return record


def _measured_quantities(record: ContrastRecord) -> dict[str, MeanAndDeviation]:
    """Return our numbers by the names of the published ones: means of both regions, ratio and p of each modality."""
    found: dict[str, MeanAndDeviation] = {}
    for test in record.tests:
        values = {
            "tumour core": test.first_mean,
            "enhancing tumour": test.second_mean,
            "ratio": test.ratio,
            "p": test.p,
        }
        found |= {f"{test.modality}, {name}": MeanAndDeviation(value, None, test.n) for name, value in values.items()}
    return found
