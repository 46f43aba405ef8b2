"""`fheat train DATA`: from a dataset and a handful of labels to a model folder."""

import io
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fheat.cli.gate_screen import gate_bars
from fheat.cli.main import UsageError, program
from fheat.cli.options import parse
from fheat.inference.predictor import usable_device
from fheat.system.errors import BadInput
from fheat.system.processes import Group
from fheat.system.progress import progress_bar
from fheat.training.loop import Look, Run, Stopped
from fheat.training.parallel import join, leave
from fheat.training.run_folder import RunFolder
from fheat.training.settings import TrainConfig, checked, read_config

A_WHILE = 60.0
"""Seconds between two lines of a run without a terminal."""
EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass(frozen=True)
class Train:
    """Train a network on a dataset, with few labels (cse) or with all of them (supervised). The run folder gets
    config.toml, log.jsonl, checkpoints, the model folders best and final, and report.html. Interrupted in whatever way,
    the run goes on with --resume as if nothing had happened.

    Example: fheat train scans --method cse --labelled 4 --out run

    Example: fheat train --resume --out run

    Example: torchrun --nproc-per-node 2 -m fheat train scans --labelled 4 --out run
    """

    data: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = None
    """Dataset folder; see fheat data check."""
    out: Path = Path("run")
    """Run folder."""
    config: Path | None = None
    """TOML file with settings; what is given here as well wins."""
    resume: bool = False
    """Go on with the run in --out; it knows its settings."""
    method: Literal["cse", "supervised"] | None = None
    """cse: labelled and unlabelled scans; supervised: labelled ones only. Default cse."""
    labelled: int | None = None
    """Use the labels of the first so many training scans; by default of all."""
    network: str | None = None
    """Default fheat_seg; see fheat models."""
    patch_size: tuple[int, int, int] | None = None
    """Voxels of a crop. Default 112 112 80."""
    batch: int | None = None
    """Labelled scans per step, and as many unlabelled ones. Default 2."""
    iterations: int | None = None
    """Default 16000."""
    warm_up: int | None = None
    """Iterations in which the rate rises. Default 500."""
    rate: float | None = None
    """Learning rate. Default 0.01."""
    box: Literal["unlabelled", "labelled"] | None = None
    """What the box of CSE holds. Default unlabelled."""
    ramp: int | None = None
    """Iterations over which the unsupervised terms of CSE gain their weight; for short runs. Default 0."""
    seed: int | None = None
    """Of weights, crops and everything else. Default 0."""
    validate_every: int | None = None
    """Default 1000 iterations."""
    checkpoint_every: int | None = None
    """Default 500 iterations."""
    intensity: Literal["none", "zscore"] | None = None
    """none for scans that are normalised already. Default zscore."""
    resident: Literal["auto", "yes", "no"] | None = None
    """Keep all scans on the GPU (yes) or stream crops from host memory (no). Default auto: no where they do not fit."""
    probe_at: tuple[int, ...] | None = None
    """Iterations after which to measure which way the loss pulls each gate; 0 is before the first."""
    noise_at: int | None = None
    """Iteration after which every closed gate is opened at random, to see what becomes of it."""
    spike_at: int | None = None
    """Iteration after which the rate is ten times as large, for 100 iterations."""
    tensorboard: bool = False
    """Write RUN/tensorboard too; needs fheat[tensorboard]."""
    device: str | None = None
    """cpu or cuda; a GPU where there is one."""
    json: bool = False
    """Print the outcome as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb, as one process or as one of those that torchrun has started."""
    group = join()
    try:
        _run(arguments, group)
    except (BadInput, UsageError, OSError, MemoryError):
        if group.rank > 0:
            sys.stderr = io.StringIO()  # all processes have failed alike, and the first one says it
        raise
    finally:
        leave()


def _run(arguments: Sequence[str], group: Group) -> None:
    received: list[int] = []
    jobs: list[Run] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # A launcher passes on what the terminal has sent already, and ends the others when one process has failed.
        if group.size == 1 and (received or not jobs):
            raise KeyboardInterrupt(EXIT[signal.Signals(number)])  # asked twice, or with nothing to save: do not wait
        received.append(number)
        for job in jobs:
            job.stop(number)

    with _handling(stop):
        options = group.together(lambda: parse(Train, "train", arguments))
        config = group.together(lambda: _config(options))
        group.lead(lambda: _check_device(options.device))
        with progress_bar("reading", quiet=group.rank > 0) as show:
            job = Run(config, options.out, resume=options.resume, device=options.device, reading=show, group=group)
        jobs.append(job)
        for number in received:
            job.stop(number)
        try:
            _train(job)
        except Stopped as stopped:
            if group.rank == 0:
                again = f"{program()} train --resume --out {options.out}"
                print(
                    f"fheat: stopped and saved at iteration {stopped.iteration}; go on with '{again}'", file=sys.stderr
                )
            raise SystemExit(EXIT[signal.Signals(stopped.reason)]) from None
    if group.rank == 0:
        _report(options, job)


@contextmanager
def _handling(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, stop) for number in EXIT}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _report(options: Train, job: Run) -> None:
    from fheat.report.write import write_report  # matplotlib, of no use until the run is over

    with progress_bar("writing the report") as show:
        report = write_report(options.out, progress=show)
    outcome = {
        "run": str(options.out),
        "report": str(report),
        "iterations": job.config.iterations,
        "validation_dice": job.best,
        "skipped": int(job.step.optimiser.skipped),
        "gates": {site: gate.strength.item() for site, gate in job.step.gates.items()},
    }
    if options.json:
        print(json.dumps(outcome, indent=1))
        return
    best = "" if job.best is None else f", best validation Dice {job.best:.4f}"
    skipped = f", {outcome['skipped']} updates skipped" if outcome["skipped"] else ""
    print(f"{job.config.iterations} iterations{best}{skipped}; wrote {options.out / 'final'} and {report}; next:")
    print(f"  {program()} allocation {options.out / 'final'}")
    print(f"  {program()} predict {options.out / ('final' if job.best is None else 'best')} SCANS masks")


def _config(options: Train) -> TrainConfig:
    names = {field.name for field in fields(options)} & set(TrainConfig.model_fields)
    values = ((name, getattr(options, name)) for name in names)
    given: dict[str, Any] = {name: value for name, value in values if value is not None and value is not False}
    if "data" in given:
        given["data"] = str(options.data)
    if options.resume:
        if given or options.config is not None:
            raise UsageError(f"a resumed run keeps its settings: leave out {', '.join(given) or 'config'}")
        return RunFolder(options.out).config()
    if options.config is not None:
        return read_config(options.config, given)
    if options.data is None:
        raise UsageError("DATA is missing: give the dataset folder, or --resume")
    try:
        return checked(given, "options")
    except BadInput as error:
        option = re.sub(r"^field (\w+)", lambda name: f"--{name[1].replace('_', '-')}", error.reason)
        raise UsageError(option) from None


def _check_device(name: str | None) -> None:
    if name is None:
        return
    try:
        usable_device(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _train(job: Run) -> None:
    screen = Console(stderr=True)
    if job.group.rank > 0:
        job.train()
        return
    if job.config.warm_up >= job.config.iterations:
        reached = f"the rate rises over {job.config.warm_up} iterations and the run has {job.config.iterations}"
        print(f"fheat: note: {reached}: give a smaller --warm-up", file=sys.stderr)
    if not screen.is_terminal:
        job.watch = _Lines()
        job.train()
        return
    with Live(console=screen, transient=True, refresh_per_second=4) as live:
        job.watch = lambda look: live.update(_picture(look))
        job.train()


class _Lines:
    """Where there is no terminal: one line a minute says where the run stands."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, look: Look) -> None:
        if time.monotonic() - self.last >= A_WHILE:
            self.last = time.monotonic()
            print(_standing(look), file=sys.stderr, flush=True)


def _picture(look: Look) -> Text:
    """Show where the run stands, and how far each gate is open."""
    return Text("\n".join([_standing(look), *gate_bars(look.gates, full=1.0)]))


def _standing(look: Look) -> str:
    losses = "  ".join(f"{name} {value:.3f}" for name, value in look.losses.items())
    best = "" if look.best is None else f"  best Dice {look.best:.4f}"
    return f"{look.iteration:,} of {look.iterations:,}  {look.per_second:.1f} it/s  {losses}{best}"
