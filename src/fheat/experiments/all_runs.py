"""Doing many runs, in this process or by workers: what is done is kept, and what fails does not stop the others."""

from collections.abc import Iterable
from pathlib import Path

from fheat.experiments.engine import Failure, RunsWatcher, run_all
from fheat.experiments.local import Local
from fheat.experiments.planned import Outcome, PlannedRun, perform
from fheat.system.errors import BadInput
from fheat.training.observers import Look


def do_runs(
    runs: Iterable[PlannedRun],
    folder: Path,
    *,
    parallel: int | None = None,
    device: str | None = None,
    watcher: RunsWatcher | None = None,
) -> dict[str, str]:
    """Do every run that is not done yet, and return the reason of each that failed, by its name.

    Args:
        runs: the runs; those of one name are the same run and are done once.
        folder: folder of all runs.
        parallel: number of workers on each GPU, or on the CPU, see `fheat.experiments.engine`. By default runs are
            done one after the other in this process, which knows networks and methods that were registered in it.
        device: `cpu` or `cuda`; GPUs where there are any.
        watcher: hears what becomes of each run.
    """
    watcher = watcher or RunsWatcher()
    missing = missing_runs(runs, folder)
    if parallel is None:
        ends = [_done_here(run, folder, device, watcher) for run in missing]
    else:
        ends = run_all(missing, folder, Local(parallel=parallel, device=device), watcher)
    return {end.name: end.reason for end in ends if isinstance(end, Failure)}


def missing_runs(runs: Iterable[PlannedRun], folder: Path) -> list[PlannedRun]:
    """Return those of several runs that are not done yet, each once."""
    by_name = {run.name: run for run in runs}
    return [run for run in by_name.values() if run.outcome(folder) is None]


def _done_here(run: PlannedRun, folder: Path, device: str | None, watcher: RunsWatcher) -> Outcome | Failure:
    def watch(look: Look) -> None:
        watcher.stands(run.name, look)

    watcher.begins(run.name)
    end: Outcome | Failure
    try:
        end = perform(run, folder, device=device, watch=watch)
    except BadInput as error:
        end = Failure(run.name, str(error))
    watcher.ends(run.name, end)
    return end
