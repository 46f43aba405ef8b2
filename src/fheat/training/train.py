"""`fheat.train`: from settings to a finished run in its folder, as the verb `fheat train` does it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fheat.models.folder import load
from fheat.models.start import Start
from fheat.system import processes
from fheat.system.errors import BadInput
from fheat.system.machine import memory_for
from fheat.system.progress import Progress, silent
from fheat.training.checkpoints import Checkpoint, check_same_run, first_length, newest_checkpoint
from fheat.training.compile_check import compile_run
from fheat.training.compiling import compiling_of
from fheat.training.observers import Checkpoints, LogFile, Look, Numbers, Perturbations
from fheat.training.prepare import Prepared, prepare
from fheat.training.probing import Probes, check_probes
from fheat.training.run_folder import LENGTH, PLACE, RunFolder
from fheat.training.scans import check_still_there
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import make_settings
from fheat.training.tensorboard import TensorBoard
from fheat.training.trainer import Observer, Trainer
from fheat.training.validation import Validation


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: where it lies, and its best mean Dice on the validation scans, if it had any."""

    folder: Path
    settings: TrainSettings
    best: float | None
    skipped: int
    """Number of updates that were left out because their gradient was not finite."""
    strengths: dict[str, float]
    """Strength D of every gate at the end."""

    def model(self) -> nn.Module:
        """Load the best network of the run, the final one in a run without validation scans."""
        return load(self.folder / ("final" if self.best is None else "best"))


def train(
    settings: TrainSettings | None = None,
    *,
    out: str | Path = "run",
    resume: bool = False,
    device: str | None = None,
    watch: Callable[[Look], None] = lambda look: None,
    reading: Progress = silent,
    observers: Iterable[Observer] = (),
    **values: Any,
) -> FinishedRun:
    """Train a network on a dataset and return the finished run, as `fheat train` does, but for its report.

    `fheat.report.write.write_report(out)` writes that page. Several processes call this within `processes.joined()`.

    Args:
        settings: all settings; or give them as `values`: by section (`optimiser={"clip": None}`) or by short name.
        out: run folder, new or empty; with `resume` that of a run that was interrupted.
        resume: go on with the run in `out`; it knows its settings, of which `iterations` may be another number,
            and `data` the place to which the dataset was moved.
        device: `cpu` or `cuda`; a GPU where there is one.
        watch: called with a `Look` every fifty iterations.
        reading: called after each scan that is read.
        observers: more of them, beside those that log, validate, save and probe.

    >>> run = train(data="scans", labelled=4, out="run")  # doctest: +SKIP
    >>> run.model()  # doctest: +SKIP
    """
    folder = RunFolder(Path(out))
    if settings is None:
        moved = isinstance(values.get("data"), str | Path)
        may = ["iterations", LENGTH, PLACE, *(["data"] if moved else [])]
        goes_on = resume and all(name in may for name in values)
        values |= {"data": str(values["data"])} if moved else {}
        settings = folder.settings(values) if goes_on else make_settings(values, "fheat.train")
    elif values:
        raise TypeError(f"settings are given twice: leave out {', '.join(values)}")
    options: dict[str, Any] = {"device": device, "watch": watch, "reading": reading, "observers": observers}
    with folder:
        return finish(begin(settings, folder, resume=resume, **options), folder)


def begin(
    settings: TrainSettings,
    folder: RunFolder,
    *,
    resume: bool = False,
    device: str | None = None,
    watch: Callable[[Look], None] = lambda look: None,
    reading: Progress = silent,
    observers: Iterable[Observer] = (),
) -> Trainer:
    """Prepare a run, claim its folder, restore its newest checkpoint with `resume`, and return its trainer.

    The processes that train together call this alike, and see the same data and folder. The first one claims it and
    writes; a folder that was claimed is given back when the block `with folder` ends.
    """
    group = processes.current()
    group.lead(folder.claim if resume else folder.check_free)
    board = TensorBoard(folder.path) if settings.output.tensorboard else None
    if board is not None:
        group.lead(board.check)
    checkpoint = _newest(folder) if resume else None
    first = first_length(folder, settings, checkpoint)
    told = None if checkpoint is None else checkpoint.facts.get("start")
    started = None if told is None else Start(**told)
    if resume:
        group.lead(lambda: check_still_there(settings.data, _moved(folder)))
    start = None if settings.network.start is None or not resume else folder.located(settings.network.start)
    grid = None if checkpoint is None else checkpoint.facts.get("grid", {})
    compiling = None if checkpoint is None else compiling_of(checkpoint.facts)
    known: dict[str, Any] = {"first": first, "started": started, "start": start, "grid": grid, "compiling": compiling}
    prepared = prepare(settings, device=device, progress=reading, **known)
    check_probes(prepared)
    if resume:
        _check_resumed(prepared, folder, checkpoint)
    prepared = compile_run(prepared)  # last, because it takes a minute or more
    boards = [] if board is None else [board]
    standard = [Numbers(watch), LogFile(folder), *boards, Perturbations(), Probes(folder), Validation(folder)]
    trainer = Trainer(prepared, [*standard, *observers, Checkpoints(folder)])
    if resume:
        _go_on(trainer, folder, board, checkpoint)
        group.lead(lambda: folder.go_on_with(settings))
    else:
        group.lead(lambda: folder.begin(settings))
    return trainer


def _moved(folder: RunFolder) -> str:
    return f"give the place to which the dataset was moved, as in fheat train DATA --resume --out {folder.path}"


def finish(trainer: Trainer, folder: RunFolder) -> FinishedRun:
    """Run a trainer to the end and return the finished run, or raise `BadInput` where the settings are at fault."""
    settings, step = trainer.settings, trainer.step
    data = settings.data
    what = f"an iteration with batch {data.batch} and patch_size {data.patch_size}"
    remedy = "start another run with a lower batch or patch_size"
    with memory_for(what, folder.path, step.iteration.device, remedy):
        try:
            trainer.run()
        except (FloatingPointError, ValueError) as error:
            if isinstance(error, ValueError) and not trainer.diverged():
                raise _refused(trainer.prepared, folder, error) from error
            remedy = "start again with a lower learning rate or precision fp32; checkpoints before it are kept"
            raise BadInput(folder.path, f"training diverged by iteration {trainer.done}", remedy) from None
    strengths = {site: gate.strength.item() for site, gate in step.gates.items()}
    return FinishedRun(folder.path, settings, trainer.best, int(step.optimiser.skipped), strengths)


def _refused(prepared: Prepared, folder: RunFolder, error: ValueError) -> Exception:
    """Say in one line what the user can mend: batch norm needs two values of every channel."""
    if "more than 1 value per channel" not in str(error):
        return error
    settings = prepared.settings
    sizes = f"batch {settings.data.batch} and patch_size {settings.data.patch_size}"
    reason = f"{settings.network.name} has batch norms that cannot be trained with {sizes}"
    return BadInput(folder.path, reason, "use a larger batch or patch_size")


def _newest(folder: RunFolder) -> Checkpoint | None:
    """Return the newest checkpoint of a run, None where there is none yet."""
    group = processes.current()
    checkpoint = group.together(lambda: newest_checkpoint(folder.checkpoints))
    if len(set(group.tell(checkpoint.iteration if checkpoint else 0))) > 1:
        raise BadInput(folder.path, "is not the same for all processes", "use a folder that they share")
    return checkpoint


def _check_resumed(prepared: Prepared, folder: RunFolder, checkpoint: Checkpoint | None) -> None:
    """Raise `BadInput` where this is not the run that was begun: other settings, scans or processes."""
    check_same_run(folder, prepared.settings, prepared.identity(), checkpoint)
    now = processes.current().size
    count = now if checkpoint is None else checkpoint.facts.get("processes", 1)
    if count != now:
        remedy = f"go on with {count}, see docs/how-to/train.md"
        raise BadInput(folder.path, f"is the run of {count} processes, not {now}", remedy)


def _go_on(trainer: Trainer, folder: RunFolder, board: TensorBoard | None, checkpoint: Checkpoint | None) -> None:
    """Restore a checkpoint, if there is one, and drop what was logged after it."""
    if checkpoint is not None:
        trainer.step.restore(checkpoint.tensors)
        trainer.done = checkpoint.iteration
        trainer.best, trainer.latest = checkpoint.facts["best"], checkpoint.facts.get("latest")

    def rewind() -> None:
        folder.remove_abandoned()
        folder.make_names_last()
        kept = folder.rewind_log(trainer.done if checkpoint else -1)  # what is logged at 0 comes again
        if board is not None:
            board.replace(kept)

    processes.current().lead(rewind)
