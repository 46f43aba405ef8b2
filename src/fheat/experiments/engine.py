"""Many runs at once: what is done is kept, what fails does not stop the others, and what is stopped goes on next time.

    outcomes = run_all(runs, Path("runs"), Local(parallel=3))

Each run is done by a worker of its own, see `worker`. An engine starts workers and hears how they end; `run_all` is the
same for all engines. `run_here` does the same in this process, one run after the other.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

from fheat.experiments.planned import Outcome, PlannedRun
from fheat.experiments.worker import StopRequest, claims_of, look_of, perform_alone
from fheat.system.claims import BEAT, holder
from fheat.system.errors import BadInput
from fheat.system.files import check_folder
from fheat.system.signals import exit_code, handling
from fheat.training.estimate import stored_speed
from fheat.training.observers import Look
from fheat.training.trainer import Stopped

SECONDS_BETWEEN_LOOKS: Final = BEAT / 2
"""Time between two looks at how far the workers are."""
LONGEST_REASON: Final = 300
"""Number of characters of a reason that are kept."""


@dataclass(frozen=True)
class Failure:
    """A run that failed, with the reason in one line."""

    name: str
    reason: str


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """All workers have stopped and saved because a signal asked for it; the same call goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


class RunsWatcher:
    """Hears what becomes of each run while it happens; every method does nothing here."""

    def begins(self, name: str) -> None:
        """Hear that a worker has a run."""

    def stands(self, name: str, look: Look) -> None:
        """Hear how far a run is."""

    def ends(self, name: str, end: Outcome | Failure) -> None:
        """Hear that a run is done, was done before, or failed."""


class Engine(AbstractContextManager[Any], Protocol):
    """Something that has workers. Used within a `with` statement; leaving it ends every worker that is left."""

    def submit(self, run: PlannedRun, folder: Path) -> None:
        """Take a run, to start it as soon as there is a worker for it."""

    def wait(self, seconds: float) -> Mapping[str, str | None]:
        """Wait at most so long, and return the runs that ended meanwhile: None, or what went wrong in one line."""

    def stop(self) -> None:
        """Ask all workers to save and end, and start no other one."""


def run_all(
    runs: Sequence[PlannedRun], folder: Path, engine: Engine, watcher: RunsWatcher | None = None
) -> list[Outcome | Failure]:
    """Do all runs that are not done yet, and return the outcome of each, or its failure, in their order.

    Those that will take longest begin first, so that no worker has to be waited for alone at the end. A signal stops
    all workers, which save, and then raises `Interrupted`; a second one does not wait for them.
    """
    watcher = watcher or RunsWatcher()
    check_folder(folder, writable=False)
    ends: dict[str, Outcome | Failure] = {}
    open_runs: dict[str, PlannedRun] = {}
    for run in runs:
        done = run.outcome(folder)
        if done is None:
            open_runs[run.name] = run
        else:
            ends[run.name] = done
            watcher.ends(run.name, done)
    if open_runs:
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with engine, _noting_signals() as received:
            for run in sorted(open_runs.values(), key=_expected_length, reverse=True):
                engine.submit(run, folder)
            for name, end in _ends(open_runs, folder, engine, watcher, received):
                ends[name] = end
                watcher.ends(name, end)
        if received and len(ends) < len(runs):
            raise Interrupted(received[0])
    return [ends[run.name] for run in runs]


def run_here(
    runs: Sequence[PlannedRun], folder: Path, *, device: str | None = None, watcher: RunsWatcher | None = None
) -> list[Outcome | Failure]:
    """Do all runs that are not done yet in this process, and return the outcome of each, or its failure.

    This process knows networks and methods that were registered in it. It claims the runs as workers do, and a signal
    stops it as it stops them.
    """
    watcher = watcher or RunsWatcher()
    check_folder(folder, writable=False)
    ends: list[Outcome | Failure] = []
    with _noting_signals() as received:
        for run in runs:
            if received:
                break
            watcher.begins(run.name)
            try:
                watch = partial(watcher.stands, run.name)
                ends.append(perform_alone(run, folder, StopRequest(received), device=device, watch=watch))
            except Stopped:
                break
            except BadInput as error:
                ends.append(Failure(run.name, str(error)))
            watcher.ends(run.name, ends[-1])
    if received and len(ends) < len(runs):
        raise Interrupted(received[0])
    return ends


def _expected_length(run: PlannedRun) -> tuple[float, int]:
    """Return about how many seconds a run takes on a GPU, infinity for a network that nobody has timed; and its
    number of iterations."""
    settings = run.settings
    data, iterations = settings.data, settings.schedule.iterations
    per_second = stored_speed(settings.network.name, settings.method.name, data.patch_size, data.batch, "cuda")
    return math.inf if per_second is None else iterations / per_second, iterations


def log_of(name: str, folder: Path) -> Path:
    """Return where the workers of a run write what they say."""
    return folder / f"{name}.log"


def _ends(
    runs: Mapping[str, PlannedRun], folder: Path, engine: Engine, watcher: RunsWatcher, received: Sequence[int]
) -> Iterator[tuple[str, Outcome | Failure]]:
    """Yield each run when it has ended; those that were stopped by a signal are left out."""
    remaining, begun = dict(runs), set[str]()
    asked, looked = False, time.monotonic()
    while remaining:
        if received and not asked:
            engine.stop()
            asked = True
        for name, reason in engine.wait(0.5).items():
            end = _end(remaining.pop(name), folder, reason)
            if isinstance(end, Outcome) or not received:
                yield name, end
        if time.monotonic() - looked < SECONDS_BETWEEN_LOOKS:
            continue
        looked = time.monotonic()
        for name, run in remaining.items():
            owner = holder(claims_of(run, folder))
            look = look_of(owner)
            if owner is not None and name not in begun:
                begun.add(name)
                watcher.begins(name)
            if look is not None:
                watcher.stands(name, look)


def _end(run: PlannedRun, folder: Path, reason: str | None) -> Outcome | Failure:
    try:
        done = run.outcome(folder)
    except BadInput as error:
        return Failure(run.name, str(error))
    if done is not None:
        return done
    words = " ".join((reason or "ended without an outcome").split())[:LONGEST_REASON]
    return Failure(run.name, f"{words}; see {log_of(run.name, folder)}")


@contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop; the second one raises `KeyboardInterrupt`."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt(exit_code(number))
        received.append(number)

    with handling(note):
        yield received
