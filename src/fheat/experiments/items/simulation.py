"""Fig. 3: gates trained on plain signals. No data is needed; the simulation is stored and not repeated."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from fheat.experiments.items.presented import Presented, notes_on, published_sheet
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.results import RowResult
from fheat.experiments.tables import Number
from fheat.figures.picture import png_picture
from fheat.metrics.statistics import MeanAndDeviation, moments
from fheat.studies.simulation.experiments import SimulationPlan, simulate
from fheat.studies.simulation.presentation import idle_values, planted_values, simulation_picture
from fheat.studies.simulation.record import FORMAT, Simulation, read_simulation
from fheat.system.files import write_file
from fheat.system.machine import machine


def simulation_of(plan: Plan) -> SimulationPlan:
    """Return the settings of the simulation: the paper's, or few iterations where everything is tiny."""
    if plan.tiny is not None:
        return SimulationPlan(seeds=1, iterations=20)
    return SimulationPlan() if plan.seeds is None else SimulationPlan(seeds=len(plan.seeds))


def stored_at(item: Item, plan: Plan) -> Path:
    """Return where the simulation with these settings is stored."""
    chosen = simulation_of(plan)
    return plan.out / "measured" / f"{item.name}-{chosen.seeds}-seeds-{chosen.iterations}-iterations.json"


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the simulated numbers beside the published ones, and the figure."""
    path = stored_at(item, plan)
    record = read_simulation(path)[0] if path.is_file() else _simulated(path, simulation_of(plan))
    ours = _quantities(record)
    numbers = [Number("", name, published, ours[name]) for name, published in item.published.items()]
    sheet = published_sheet(item, numbers)
    caption = f"{item.title}. {'; '.join(f'{row[0]} {row[1]}' for row in sheet.rows)}."
    picture = png_picture(item.name, simulation_picture(record), caption)
    return Presented((sheet,), tuple(numbers), (picture,), tuple(notes_on(item, results, plan)))


def _simulated(path: Path, plan: SimulationPlan) -> Simulation:
    began = time.perf_counter()
    results = simulate(plan, controls=False)
    command = f"fheat simulate --seeds {plan.seeds} --iterations {plan.iterations} --no-controls"
    head = {"format": FORMAT, "command": command, "machine": machine(), "seed": list(range(plan.seeds))}
    content = {**head, "seconds": round(time.perf_counter() - began, 1), **results}
    record = Simulation.model_validate(content)
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())
    return record


def _quantities(record: Simulation) -> dict[str, MeanAndDeviation]:
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
