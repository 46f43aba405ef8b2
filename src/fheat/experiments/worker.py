"""The work on one of many runs: claim it, do it or go on with it, say how far it is, stop when asked.

    python -m fheat.experiments.worker < job.json

Whoever starts workers, on this machine or on others, hands each a `Job`. A run that another process holds is waited for
and not done again; one whose worker died goes on from its last checkpoint.
"""

import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import torch
from pydantic import BaseModel, ConfigDict

from fheat.experiments.planned import Outcome, PlannedRun, perform
from fheat.experiments.scoring import Scoring
from fheat.system.claims import Claim, Displaced, Holder, claimed
from fheat.system.errors import BadInput
from fheat.system.signals import exit_code, handling
from fheat.training.observers import Look
from fheat.training.run_folder import CLAIMS, CONFIG
from fheat.training.settings_sources import make_settings
from fheat.training.trainer import Observer, Stopped, Trainer

SECONDS_BETWEEN_LINES: Final = 60.0
"""Time between two lines that a worker prints about its run."""


class Job(BaseModel):
    """A run for a worker, with all that the worker must know to do it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    key: str
    settings: dict[str, Any]
    scoring: Scoring
    folder: str
    """Folder of all runs."""
    here: str
    """Folder that relative paths start from."""
    device: str | None = None
    threads: int | None = None
    """Number of threads that torch uses, as many as it likes if None."""

    @classmethod
    def of(cls, run: PlannedRun, folder: Path, *, device: str | None, threads: int | None) -> Self:
        """Return the job to do a run in a folder of runs."""
        return cls(
            name=run.name,
            key=run.key,
            settings=run.settings.model_dump(mode="json"),
            scoring=run.scoring,
            folder=str(folder),
            here=str(Path.cwd()),
            device=device,
            threads=threads,
        )

    def run(self) -> PlannedRun:
        """Return the run, or raise `BadInput` where the scans are not the same on this machine."""
        run = PlannedRun(self.name, make_settings(self.settings, self.name), self.scoring)
        if run.key != self.key:
            reason = "does not hold the scans that the run was planned with"
            raise BadInput(run.settings.data.folder, reason, "give a dataset that all machines see alike")
        return run


class StopRequest(Observer):
    """The request that a run stops: it is heard while scans are read, and after an iteration, when the state is saved.

    `received` has the signals that asked for it, and may grow at any moment.
    """

    def __init__(self, received: list[int] | None = None) -> None:
        self.received = [] if received is None else received
        self.training = False
        """Whether there is something to save."""

    def begin(self, trainer: Trainer) -> None:
        """Take note that training begins."""
        self.training = True

    def before(self, trainer: Trainer) -> None:
        """Pass the request on to the trainer."""
        if self.received:
            trainer.stop(self.received[0])

    def end(self, trainer: Trainer) -> None:
        """Stop before the network is scored, if that was asked during the last iteration."""
        self.training = False
        self.check(trainer.done)

    def check(self, iteration: int = 0) -> None:
        """Raise `Stopped` if the run is asked to stop."""
        if self.received:
            raise Stopped(iteration, self.received[0])


class _Held(Observer):
    """Makes sure before every iteration, and before what it writes, that the run is still claimed by this process."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def before(self, trainer: Trainer) -> None:
        """Raise `Displaced` if it is not."""
        self._claim.check()


def work(job: Job, request: StopRequest, beating: Callable[[], None] = lambda: None) -> Outcome:
    """Do the run of a job where it is to be done, print how far it is now and then, and return its outcome.

    `beating` is called every few seconds by another thread and may ask to stop.
    """
    with suppress(OSError):  # where that folder is missing, relative paths are too, and are refused by name
        os.chdir(job.here)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    last = time.monotonic()

    def say(words: str) -> None:
        print(f"{job.name}: {words}", flush=True)

    def watch(look: Look) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(look.standing())

    return perform_alone(job.run(), Path(job.folder), request, device=job.device, watch=watch, say=say, beating=beating)


def perform_alone(
    run: PlannedRun,
    folder: Path,
    request: StopRequest,
    *,
    device: str | None = None,
    watch: Callable[[Look], None] = lambda look: None,
    say: Callable[[str], None] = lambda words: None,
    beating: Callable[[], None] = lambda: None,
) -> Outcome:
    """Do a run, or what is missing of it, as soon as no other process does it, and return its outcome.

    Args:
        run: the run.
        folder: folder of all runs.
        request: stops the run when it is asked to.
        device: `cpu` or `cuda`; a GPU where there is one.
        watch: called with a `Look` every fifty iterations.
        say: called with a line when the run begins and ends.
        beating: called every few seconds by another thread.

    A process that was taken for dead leaves the run to the one that has taken it over, and waits for that.
    """

    def wait(owner: Holder | None) -> None:
        beating()
        request.check()

    def read(done: int, total: int) -> None:
        request.check()

    while (done := run.outcome(folder)) is None:
        with suppress(Displaced), claimed(claims_of(run, folder), waiting=wait, beating=beating) as claim:

            def note(look: Look, claim: Claim = claim) -> None:
                claim.note = asdict(look)
                watch(look)

            begins = "goes on" if (run.folder(folder) / CONFIG).exists() else "begins"
            say(f"{begins}: {platform.node()}, process {os.getpid()}")
            observers = [request, _Held(claim)]
            outcome = perform(run, folder, claim, device=device, watch=note, reading=read, observers=observers)
            say(f"done after {outcome.seconds:.0f} s")
            return outcome
        say("was silent for too long, and another worker goes on with it")
    return done


def claims_of(run: PlannedRun, folder: Path) -> Path:
    """Return where processes claim a run: in its folder, as `fheat train` does."""
    return run.folder(folder) / CLAIMS


def look_of(holder: Holder | None) -> Look | None:
    """Return how far the holder of a run is, if it has said so."""
    return None if holder is None or not holder.note else Look(**holder.note)


def main() -> int:
    """Do the job that standard input describes, and return the exit code of the process."""
    job = Job.model_validate_json(sys.stdin.buffer.read())
    request, parent = StopRequest(), os.getppid()

    def stop(number: int, frame: FrameType | None) -> None:
        if request.received or not request.training:
            raise KeyboardInterrupt(exit_code(number))  # asked twice, or with nothing to save: do not wait
        request.received.append(number)

    def live_with_parent() -> None:
        if os.getppid() != parent:
            request.received.append(signal.SIGTERM)

    try:
        with handling(stop):
            work(job, request, live_with_parent)
    except Stopped as stopped:
        print(f"{job.name}: stopped and saved at iteration {stopped.iteration}", flush=True)
        return exit_code(stopped.reason)
    except KeyboardInterrupt as interrupt:
        print(f"{job.name}: stopped", flush=True)
        return int(interrupt.args[0]) if interrupt.args else exit_code(signal.SIGINT)
    except BadInput as error:
        print(error, flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
