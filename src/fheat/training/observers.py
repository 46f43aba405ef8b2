"""Observers of a run: its log, its progress, its perturbations, its checkpoints, and the end of hopeless ones."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from fheat.system import processes
from fheat.training.checkpoints import Checkpoint, save_checkpoint
from fheat.training.run_folder import RunFolder
from fheat.training.settings import ResearchSettings
from fheat.training.trainer import LogLine, Observer, Trainer

ITERATIONS_BETWEEN_LOOKS = 50
"""Number of iterations between looks at the device, which make the host wait."""
ITERATIONS_LOGGED_ONE_BY_ONE = 500
"""Number of iterations that are all logged, where the gates decide: from the start and after a perturbation. Later it
is every tenth."""
ITERATIONS_WITHOUT_HOPE = 500
"""Number of iterations of which nine in ten were skipped, their gradients not finite, before a run is given up."""


@dataclass(frozen=True)
class Look:
    """The state of a run right now, for whoever watches."""

    iteration: int
    iterations: int
    per_second: float
    losses: Mapping[str, float]
    gates: Mapping[str, float]
    best: float | None

    def standing(self) -> str:
        """Return where the run stands in one line."""
        losses = "  ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        best = "" if self.best is None else f"  best Dice {self.best:.4f}"
        return f"{self.iteration:,} of {self.iterations:,}  {self.per_second:.1f} it/s  {losses}{best}"


class Numbers(Observer):
    """Emits losses, gates and speed, gives hopeless runs up, and shows a `Look` to whoever watches.

    It is due whenever another observer is, so that the log is complete before anything else is written, and it comes
    first among the observers.
    """

    def __init__(self, watch: Callable[[Look], None] = lambda look: None) -> None:
        self._watch = watch
        self._logged = 0
        self._first, self._began = 0, 0.0
        self._skipped: deque[int] = deque(maxlen=ITERATIONS_WITHOUT_HOPE // ITERATIONS_BETWEEN_LOOKS + 1)

    def begin(self, trainer: Trainer) -> None:
        """Start the clock, and emit which gates are closed before the first iteration, if any are."""
        closed = [site for site, gate in trainer.step.gates.items() if gate.strength.item() == 0]
        if trainer.done == 0 and closed:
            trainer.emit([{"iteration": 0, "closed": closed}])
        self._logged = trainer.done
        self._restart(trainer)

    def before(self, trainer: Trainer) -> None:
        """Leave out of the speed what other observers took since the last look."""
        if self._logged == trainer.done:
            self._restart(trainer)

    def due(self, trainer: Trainer) -> bool:
        """Return whether fifty iterations are done, the run ends, or another observer is due."""
        if trainer.done % ITERATIONS_BETWEEN_LOOKS == 0 or trainer.at_end:
            return True
        return any(observer.due(trainer) for observer in trainer.observers if observer is not self)

    def look(self, trainer: Trainer) -> None:
        """Emit the iterations since the last look, and the speed."""
        rows = trainer.step.history[self._logged : trainer.done].tolist()  # waits for the device
        lines = [
            {"iteration": iteration, **dict(zip(trainer.step.columns, row, strict=True))}
            for iteration, row in enumerate(rows, start=self._logged + 1)
            if iteration % 10 == 0 or gates_decide(iteration, trainer.settings.research)
        ]
        per_second = (trainer.done - self._first) / (time.perf_counter() - self._began)
        skipped = int(trainer.step.optimiser.skipped)
        trainer.emit([*lines, {"iteration": trainer.done, "per_second": round(per_second, 3), "skipped": skipped}])
        self._logged = trainer.done
        self._give_up(trainer, skipped)
        last = trainer.step.row(trainer.done)
        gates = {name.removeprefix("D."): value for name, value in last.items() if name.startswith("D.")}
        losses = {name: last[name] for name in trainer.step.method.names}
        iterations = trainer.settings.schedule.iterations
        self._watch(Look(trainer.done, iterations, per_second, losses, gates, trainer.best))

    def _give_up(self, trainer: Trainer, skipped: int) -> None:
        if trainer.done % ITERATIONS_BETWEEN_LOOKS == 0:
            self._skipped.append(skipped)
            if self._skipped[-1] - self._skipped[0] > 0.9 * ITERATIONS_WITHOUT_HOPE:
                raise FloatingPointError(f"nine in ten of {ITERATIONS_WITHOUT_HOPE} updates were not finite")

    def _restart(self, trainer: Trainer) -> None:
        self._first, self._began = trainer.done, time.perf_counter()


class LogFile(Observer):
    """Writes every line to `log.jsonl` of the run folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def record(self, lines: Sequence[LogLine]) -> None:
        """Append the lines."""
        self._folder.log(lines)


class Perturbations(Observer):
    """Opens closed gates at random after the iteration that the settings name; the spike is part of the schedule."""

    def before(self, trainer: Trainer) -> None:
        """Open them, also in a run that goes on here: the draws are the same."""
        research = trainer.settings.research
        if trainer.done == research.noise_at:
            trainer.step.reopen_gates(research.noise, trainer.settings.schedule.seed)


class Checkpoints(Observer):
    """Writes the complete state every so many iterations, at the end, and where a run is asked to stop."""

    everywhere = True  # each process gathers what it remembers of its own crops; the first one writes

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def due(self, trainer: Trainer) -> bool:
        """Return whether it is time."""
        return trainer.done % trainer.settings.output.checkpoint_every == 0 or trainer.at_end

    def look(self, trainer: Trainer) -> None:
        """Write a checkpoint."""
        group = processes.current()
        facts = {
            "best": trainer.best,
            "latest": trainer.latest,
            "settings": trainer.settings.model_dump(mode="json"),
            "set": trainer.prepared.identity(),
            "grid": trainer.prepared.grid(),
            "compiled": asdict(trainer.prepared.compiling),
        } | ({} if group.size == 1 else {"processes": group.size})
        if trainer.prepared.first != trainer.settings.schedule.iterations:
            facts["first"] = trainer.prepared.first
        if trainer.prepared.start is not None:
            facts["start"] = trainer.prepared.start.facts()
        checkpoint = Checkpoint(trainer.done, trainer.step.state(), facts)

        def save() -> None:
            self._folder.check_ours()
            self._folder.flush_log()
            save_checkpoint(self._folder.checkpoints, checkpoint)

        group.lead(save)


def gates_decide(iteration: int, research: ResearchSettings) -> bool:
    """Return whether an iteration is one of those in which gates decide: from the start, and after a perturbation."""
    begun = [0, *(at for at in (research.noise_at, research.spike_at) if at is not None)]
    return any(0 < iteration - at <= ITERATIONS_LOGGED_ONE_BY_ONE for at in begun)
