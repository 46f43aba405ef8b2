"""Doing many runs: what is done is kept, what was interrupted goes on, and what fails does not stop the others."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fheat.experiments.planned import PlannedRun, perform
from fheat.system.errors import BadInput
from fheat.system.progress import progress_bar
from fheat.training.observers import Look


def do_runs(
    runs: Iterable[PlannedRun],
    folder: Path,
    *,
    device: str | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, str]:
    """Do every run that is not done yet, one after the other, and return the reason of each that failed, by its name.

    Runs of one name are the same run and are done once. `say` gets a line when a run begins, ends or fails.
    """
    missing = {run.name: run for run in runs if run.outcome(folder) is None}
    failures: dict[str, str] = {}
    for number, (name, run) in enumerate(missing.items(), start=1):
        begun = "goes on" if run.state(folder) == "interrupted" else "begins"
        say(f"{name}: {begun}, run {number} of {len(missing)}")
        try:
            with progress_bar(name) as show:

                def watch(look: Look) -> None:
                    show(look.iteration, look.iterations)

                outcome = perform(run, folder, device=device, watch=watch)
        except BadInput as error:
            failures[name] = str(error)
            say(f"{name}: failed: {error}")
        else:
            best = "" if outcome.best is None else f", best validation Dice {outcome.best:.4f}"
            say(f"{name}: done in {outcome.seconds:.0f} s{best}")
    return failures
