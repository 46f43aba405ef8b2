"""A look inside the network of a run, on the scans it was scored on: residual spectrum and attention, measured once."""

from pathlib import Path

from fheat import __version__
from fheat.experiments.plan import Plan
from fheat.experiments.row_plan import scored_cases
from fheat.experiments.row_result import RowResult
from fheat.models.folder import load
from fheat.studies.inside.measure import AnalysisOptions, analyse
from fheat.studies.inside.record import (
    ANALYSIS,
    MAPS,
    Analysis,
    ModelAnalysis,
    Plane,
    planes_bytes,
    read_analysis,
    read_planes,
)
from fheat.system.files import write_file
from fheat.training.runs import Saved


def scored_network(result: RowResult, plan: Plan, seed: int | None = None) -> Path:
    """Return the model folder that was scored, of the first seed that is done or of a given one."""
    chosen = next(iter(result.outcomes)) if seed is None else seed
    run = result.plan.runs[result.plan.seeds.index(chosen)]
    part = "final" if result.outcomes[chosen].best is None else run.scoring.network
    return run.folder(plan.runs) / part


def inside(result: RowResult, plan: Plan) -> tuple[ModelAnalysis, list[Plane]]:
    """Return what the network of the first seed does inside, and planes of its attention on the first scans.

    The measurement is stored in the folder of the run, which is that of these settings and scans alone.
    """
    model = scored_network(result, plan)
    stored, maps = model.parent / ANALYSIS, model.parent / MAPS
    if not stored.is_file():
        split, cases = scored_cases(plan.data[result.plan.row.dataset])
        planes: list[Plane] = []
        saved = Saved(result.plan.row.title, load(model), model.name, None)
        measured = analyse(saved, cases, AnalysisOptions(), device=plan.device, keep=planes.append)
        whole = Analysis(fheat=__version__, dataset=result.plan.row.dataset, split=split, models=(measured,))
        write_file(maps, planes_bytes({0: planes}))
        write_file(stored, whole.text().encode())
    return read_analysis(stored).models[0], read_planes(maps, 1).get(0, [])
