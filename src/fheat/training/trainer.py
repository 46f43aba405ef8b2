"""The trainer advances a run; observers look at it between iterations.

    trainer = Trainer(prepare(settings), observers)
    trainer.run()

An observer says after which iterations it wants to look (`due`), and then logs, validates, saves or measures (`look`).
What it has to tell goes through `Trainer.emit` to every observer that records lines, such as the log file.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from fheat.system import processes
from fheat.system.pace import Pace
from fheat.training.prepare import Prepared

LogLine = Mapping[str, Any]


class Stopped(Exception):  # noqa: N818 - it is not an error
    """A run that was asked to stop, for a reason that is a number, has saved its state at this iteration."""

    def __init__(self, iteration: int, reason: int) -> None:
        super().__init__(f"stopped at iteration {iteration}")
        self.iteration, self.reason = iteration, reason


class Observer:
    """Something that looks at a run between iterations. Every method may be left as it is: then nothing happens.

    Where several processes train together, the first one looks while the others wait; an observer with `everywhere`
    looks on all of them.
    """

    everywhere = False

    def begin(self, trainer: "Trainer") -> None:
        """Look before the first iteration of this process."""

    def before(self, trainer: "Trainer") -> None:
        """Act before each iteration, on every process."""

    def due(self, trainer: "Trainer") -> bool:
        """Return whether to look after the iteration that was just done, `trainer.done`; alike on all processes."""
        return False

    def look(self, trainer: "Trainer") -> None:
        """Look at the run; called where an observer is due, and where the run is stopping."""

    def record(self, lines: Sequence[LogLine]) -> None:
        """Take lines that observers emit: each a mapping with an `iteration` and numbers."""

    def end(self, trainer: "Trainer") -> None:
        """Look after the last iteration of the run."""


class Trainer:
    """Advances a prepared run to its end and calls its observers in their order.

    `done` counts the iterations so far, `best` is the best mean Dice on the validation scans and `latest` the last one.
    While the network is being validated, `validating` has the number of scans done and their total.
    """

    def __init__(self, prepared: Prepared, observers: Iterable[Observer] = ()) -> None:
        self.prepared, self.settings, self.step = prepared, prepared.settings, prepared.step
        self.observers = list(observers)
        self.done = 0
        self.best: float | None = None
        self.latest: float | None = None
        self.validating: tuple[int, int] | None = None
        self._stopping = 0

    @property
    def at_end(self) -> bool:
        """Whether the last iteration is done."""
        return self.done == self.settings.schedule.iterations

    def run(self) -> None:
        """Advance to the end, or raise `Stopped` after the iteration in which `stop` was called."""
        group, pace = processes.current(), self.new_pace()
        self._tell("begin", self.observers)
        while not self.at_end:
            for observer in self.observers:
                observer.before(self)
            with nullcontext() if pace is None else pace.unit():
                self.step()
            self.done += 1
            reason = group.largest(self._stopping)  # a signal may come at any moment: only `stop` writes there
            due = [observer for observer in self.observers if observer.due(self)]
            if due or reason:
                self._tell("look", self.observers if reason else due)
            if reason and not self.at_end:
                raise Stopped(self.done, reason)
        self._tell("end", self.observers)

    def new_pace(self) -> Pace | None:
        """Return what chooses the threads of one kind of work; None on a GPU and in runs that repeat bit by bit."""
        steady = self.settings.optimiser.deterministic or self.step.iteration.device.type != "cpu"
        return None if steady else Pace()

    def stop(self, reason: int = 1) -> None:
        """Ask the run to save its state after the iteration it is in, and to raise `Stopped`.

        Asked on one process, all stop after the same iteration. The largest of different reasons counts.
        """
        self._stopping = reason

    def emit(self, lines: Sequence[LogLine]) -> None:
        """Hand lines to every observer."""
        for observer in self.observers:
            observer.record(lines)

    def diverged(self) -> bool:
        """Return whether a parameter of the network, or the loss that is minimised, has been NaN or infinite."""
        seen = (self.step.history[: self.done, 0], *self.step.model.parameters())
        return not all(bool(torch.isfinite(values).all()) for values in seen)

    def _tell(self, what: str, observers: Iterable[Observer]) -> None:
        for observer in observers:
            call = partial(getattr(observer, what), self)
            if observer.everywhere:
                call()
            else:
                processes.current().lead(call)
