"""`fheat train DATA`: from a dataset and a handful of labels to a model folder."""

import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fheat.cli.gate_screen import gate_bars
from fheat.cli.main import UsageError, command, program
from fheat.cli.options import check_device
from fheat.cli.settings import file_settings, merged_settings, parse_settings
from fheat.system import processes
from fheat.system.errors import BadInput
from fheat.system.progress import progress_bar
from fheat.system.signals import exit_code, handling
from fheat.training.observers import Look
from fheat.training.plan import RunPlan, plan_run
from fheat.training.prepare import Prepared, prepare
from fheat.training.run_folder import LENGTH, RunFolder
from fheat.training.settings import TrainSettings
from fheat.training.train import FinishedRun, begin, finish
from fheat.training.trainer import Stopped, Trainer

SECONDS_BETWEEN_LINES = 60.0
"""Time between two lines of a run without a terminal."""


@dataclass(frozen=True)
class Train:
    """Train a network on a dataset, with few labels or with all of them. The run folder gets config.toml, log.jsonl,
    checkpoints, the model folders best and final, and report.html. Interrupted in whatever way, the run goes on with
    --resume as if nothing had happened. Every setting is an option, and a line of the TOML file for --config.

    Example: fheat train scans --method cse --labelled 4 --out run

    Example: fheat train scans --plan-only --json

    Example: fheat train scans --network.mixer gelu --optimiser.clip none --out run

    Example: fheat train scans --from la-4 --labelled 4 --out run

    Example: fheat train --resume --out run

    Example: fheat train --resume --out run --iterations 20000

    Example: fheat train moved/scans --resume --out run

    Example: torchrun --nproc-per-node 2 -m fheat train scans --labelled 4 --out run
    """

    dataset: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = None
    """Dataset folder; see fheat data check. With --resume its new place, if it was moved."""
    out: Path = Path("run")
    """Run folder."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """TOML file with settings; what is given as an option as well wins."""
    preset: Annotated[Literal["paper"] | None, tyro.conf.arg(metavar="paper", help_behavior_hint="")] = None
    """Settings under one name, where no option and no file says otherwise. paper follows the paper's words: no gradient
    is clipped, and the network is chosen every 200 iterations."""
    resume: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Go on with the run in --out; it knows its settings. With --iterations it becomes longer, or ends earlier."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE", help_behavior_hint="")] = None
    """Device to train on, cpu or cuda; a GPU where there is one."""
    trust: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    plan_only: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Read the scans, print the plan of the run (grid, patch, intensities, memory, time), and stop. Nothing is written.
    """
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print the outcome, or with --plan-only the plan, as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb, as one process or as one of those that torchrun has started."""
    with processes.joined() as group:
        try:
            _run(arguments, group)
        except (BadInput, UsageError, OSError, MemoryError):
            if group.rank > 0:
                sys.stderr = io.StringIO()  # all processes have failed alike, and the first one says it
            raise


def _run(arguments: Sequence[str], group: processes.Group) -> None:
    received: list[int] = []
    trainers: list[Trainer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # A launcher passes on what the terminal has sent already, and ends the others when one process has failed.
        if group.size == 1 and (received or not trainers):
            raise KeyboardInterrupt(exit_code(number))  # asked twice, or with nothing to save: do not wait
        received.append(number)
        for trainer in trainers:
            trainer.stop(number)

    with handling(stop), ExitStack() as closing:
        options, settings = group.together(lambda: _settings(arguments))
        group.lead(lambda: check_device(options.device))
        if options.plan_only:
            with progress_bar("reading", quiet=group.rank > 0) as show:
                prepared = prepare(settings, device=options.device, progress=show)
            if group.rank == 0:
                _print_notes(prepared)
                _print_plan(plan_run(prepared), as_json=options.json)
            return
        screen = _Screen(settings)
        folder = closing.enter_context(RunFolder(options.out))
        with progress_bar("reading", quiet=group.rank > 0) as show:
            trainer = begin(
                settings, folder, resume=options.resume, device=options.device, watch=screen.show, reading=show
            )
        trainers.append(trainer)
        if group.rank == 0:
            _print_notes(trainer.prepared, goes_on=trainer.done > 0)
        plan = plan_run(trainer.prepared) if group.rank == 0 and not options.resume else None
        if plan is not None and not options.json:
            _print_plan(plan)
        for number in received:
            trainer.stop(number)
        try:
            with screen.shown(quiet=group.rank > 0):
                finished = finish(trainer, folder)
        except Stopped as stopped:
            if group.rank == 0:
                again = f"{program()} train --resume --out {options.out}"
                reached = f"stopped and saved at iteration {stopped.iteration}"
                print(f"fheat: {reached}; go on with '{again}'", file=sys.stderr)
            raise SystemExit(exit_code(stopped.reason)) from None
    if group.rank == 0:
        _report(options, finished, plan)


def _print_notes(prepared: Prepared, *, goes_on: bool = False) -> None:
    for note in prepared.notes(goes_on=goes_on):
        print(f"fheat: note: {note}", file=sys.stderr)


def _print_plan(plan: RunPlan, *, as_json: bool = False) -> None:
    print(json.dumps(plan.to_json(), indent=1) if as_json else plan.text(), flush=True)


def _settings(arguments: Sequence[str]) -> tuple[Any, TrainSettings]:
    """Return the options of the verb, and the settings: of the run that is resumed, else of file and options."""
    path = _config_file(arguments)
    file = {} if path is None else file_settings(path)
    options, given = parse_settings(Train, "train", arguments, file)
    if options.resume:
        names = [f"{section}.{name}" for section, values in given.items() for name in values]
        said = [f"--{name}".replace("_", "-") for name in names if name != LENGTH]
        said += ["--config"] if options.config is not None else []
        said += ["--preset"] if options.preset is not None else []
        if said:
            raise UsageError(f"a resumed run keeps its settings: leave out {', '.join(said)}")
        if options.dataset is not None:
            given.setdefault("data", {})["folder"] = str(options.dataset)
        run = RunFolder(options.out)
        return options, merged_settings(run.settings().model_dump(), given, run.path) if given else run.settings()
    if options.dataset is not None:
        given.setdefault("data", {})["folder"] = str(options.dataset)
    elif not isinstance(file.get("data"), dict) or not file["data"].get("folder"):
        raise UsageError("DATA is missing: give the dataset folder, or --resume")
    preset = {} if options.preset is None else {"preset": options.preset}
    return options, merged_settings(file | preset, given, path)


def _config_file(arguments: Sequence[str]) -> Path | None:
    """Return the file that --config names; the options of the file's network and method are known only with it.

    An empty name is left to the parser of the options, which refuses it.
    """
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option == "--config":
            named = value if equals else next(iter(arguments[index + 1 :]), None)
            return None if not named or "--resume" in arguments else Path(named)
    return None


def _report(options: Any, finished: FinishedRun, plan: RunPlan | None) -> None:
    from fheat.report.write import write_report  # matplotlib, of no use until the run is over

    with progress_bar("writing the report") as show:
        report = write_report(options.out, progress=show)
    iterations = finished.settings.schedule.iterations
    if options.json:
        outcome = {
            "run": str(options.out),
            "report": str(report),
            "iterations": iterations,
            "validation_dice": finished.best,
            "skipped": finished.skipped,
            "gates": finished.strengths,
            "plan": None if plan is None else plan.to_json(),
        }
        print(json.dumps(outcome, indent=1))
        return
    best = "" if finished.best is None else f", best validation Dice {finished.best:.4f}"
    skipped = f", {finished.skipped} updates skipped" if finished.skipped else ""
    print(f"{iterations} iterations{best}{skipped}; wrote {options.out / 'final'} and {report}; next:")
    model = options.out / ("final" if finished.best is None else "best")
    print(f"  {command('allocation', model)}")
    print(f"  {command('predict', model, 'SCANS', 'masks')}")


class _Screen:
    """Shows where a run stands: live on a terminal, else a line a minute."""

    def __init__(self, settings: TrainSettings) -> None:
        self._schedule = settings.schedule
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._last = time.monotonic()

    @contextmanager
    def shown(self, *, quiet: bool) -> Iterator[None]:
        """Show what `show` is given while the body runs; nothing with `quiet`."""
        if quiet:
            yield
            return
        if self._schedule.warm_up >= self._schedule.iterations:
            rises = f"the learning rate rises over {self._schedule.warm_up} iterations"
            reached = f"{rises} and the run has {self._schedule.iterations}"
            print(f"fheat: note: {reached}: give a smaller --warm-up", file=sys.stderr)
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, transient=True, refresh_per_second=4) as self._live:
            yield

    def show(self, look: Look) -> None:
        """Take the state of the run."""
        if self._live is not None:
            self._live.update(picture(look))
        elif not self._console.is_terminal and time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            print(look.standing(), file=sys.stderr, flush=True)


def picture(look: Look) -> Text:
    """Return where the run stands, and a bar for how far each gate is open."""
    return Text("\n".join([look.standing(), *gate_bars(look.gates, full=1.0)]))
