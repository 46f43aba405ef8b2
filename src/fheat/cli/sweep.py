"""`fheat sweep FILE`: many runs from one file, each done once, and a table of what came out of them."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fheat.cli.main import UsageError, command
from fheat.cli.options import check_device, parse
from fheat.system.errors import BadInput
from fheat.system.signals import exit_code
from fheat.system.text import printable

if TYPE_CHECKING:
    from fheat.experiments.engine import Engine
    from fheat.experiments.planned import PlannedRun
    from fheat.experiments.sweep_table import SweepTable


@dataclass(frozen=True)
class Sweep:
    """Train and score many networks: every combination of the values in a TOML file, or runs that it names. Each run
    has its folder and its log in --out. Runs that are done are kept, and interrupted ones go on, so the same command
    can be given again after an interruption or with more values in the file. A run that fails is named with its reason,
    the others still run, and the exit code is 3. At the end a table is printed and written to sweep.csv and sweep.md.

    The file has a table [settings] with what all runs have in common, by the names of fheat train; [scoring] says on
    which scans they are compared; [grid] has lists of values, and [[run]] names a run and gives its settings.

    Example: fheat sweep sweep.toml --out runs --parallel 2

    Example: fheat sweep sweep.toml --out runs --only clip-none-seed-0

    Example: fheat sweep sweep.toml --out runs --list
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TOML file that plans the runs; see docs/how-to/cluster.md."""
    out: Path = Path("runs")
    """Folder for all runs."""
    only: tuple[str, ...] = ()
    """Names of the runs to do now, all if none; several commands may do different runs of one folder at once."""
    parallel: int | None = None
    """Number of runs at once on each GPU, or on the CPU of each machine; by default 1."""
    engine: Literal["local", "ray"] = "local"
    """Where runs are done: on this machine, or on a Ray cluster whose machines share --out and the data."""
    address: str | None = None
    """Address of the Ray cluster; by default the one that this machine is part of, else one that is started here."""
    device: str | None = None
    """cpu, cuda for all GPUs, or cuda:1; GPUs where there are any."""
    list: bool = False
    """Show the state of each run, and do nothing."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print the table as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Sweep, "sweep", arguments)
    if "--only" in arguments and not options.only:
        raise UsageError("--only has no name: give the names of runs, or leave it out to do all of them")
    if options.parallel is not None and options.parallel < 1:
        raise UsageError(f"parallel={options.parallel} is too few: give 1 or more")
    from fheat.cli.run_screen import run_screen  # and with them torch, of no use for help and for wrong options
    from fheat.experiments.engine import Failure, Interrupted, run_all
    from fheat.experiments.sweep import read_sweep
    from fheat.experiments.sweep_table import CSV, MARKDOWN, sweep_table

    sweep = read_sweep(options.file)
    chosen = _chosen(sweep.runs, options.only)
    if options.list:
        _show(sweep_table(sweep, options.out), options)
        return
    engine = _engine(options)
    try:
        with run_screen(len(chosen)) as watcher, redirect_stdout(sys.stderr):  # on which Ray prints its remarks
            ends = run_all(chosen, options.out, engine, watcher)
    except Interrupted as interrupted:
        table = sweep_table(sweep, options.out)
        table.write(options.out)
        done = sum(run.outcome(options.out) is not None for run in chosen)
        words = f"stopped; {done} of {len(chosen)} runs are done and the others are saved"
        print(f"fheat: {words}; the same command goes on", file=sys.stderr)
        raise SystemExit(exit_code(interrupted.number)) from None
    failures = [end for end in ends if isinstance(end, Failure)]
    table = sweep_table(sweep, options.out, failures)
    table.write(options.out)
    _show(table, options)
    best = next((run for run in sweep.runs if run.name == table.best_dice), None)
    if best is not None and not options.json:
        print(f"* the best; wrote {options.out / CSV} and {options.out / MARKDOWN}; next:")
        print(f"  {command('report', best.folder(options.out))}")
    for failure in failures:
        print(printable(f"failed {failure.name}: {failure.reason}"), file=sys.stderr)
    if failures:
        raise BadInput(options.out, f"{len(failures)} of {len(ends)} runs failed", "see the lines above for each")


def _chosen(runs: "Sequence[PlannedRun]", names: Sequence[str]) -> "list[PlannedRun]":
    """Return the runs of these names in the order of the sweep, all of them if there are no names."""
    from fheat.system.settings import nearest

    known = [run.name for run in runs]
    for name in names:
        if name not in known:
            raise UsageError(f"--only: the file plans no run {name!r}{nearest(name, known)}; it has {', '.join(known)}")
    return [run for run in runs if not names or run.name in names]


def _engine(options: Sweep) -> "Engine":
    from fheat.experiments.local import Local
    from fheat.experiments.on_ray import OnRay

    if options.engine == "ray":
        return OnRay(parallel=options.parallel, device=options.device, address=options.address)
    if options.address is not None:
        raise UsageError("--address is that of a Ray cluster: add --engine ray")
    check_device(options.device)
    return Local(parallel=options.parallel, device=options.device)


def _show(table: "SweepTable", options: Sweep) -> None:
    print(json.dumps(table.to_json(), indent=1) if options.json else table)
