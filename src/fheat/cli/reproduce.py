"""`fheat reproduce`: the tables and figures of the paper, run or read, beside the published numbers."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fheat.cli.main import UsageError, command
from fheat.cli.options import check_device, parse
from fheat.system.errors import BadInput
from fheat.system.signals import exit_code
from fheat.system.text import counted, printable

if TYPE_CHECKING:
    from fheat.experiments.plan import Plan
    from fheat.experiments.records import Item


@dataclass(frozen=True)
class Reproduce:
    """Run the tables and figures of the paper, as far as data and networks are there, and print ours beside the
    published numbers: mean and deviation over seeds, and paired tests between rows on the same scans. Runs that are
    done are read, interrupted ones go on, and the same command can be given again with more data or seeds. Markdown,
    CSV and figures of every item are written to --out. What fails is named, the others go on, and the exit code is 3.

    Items: table1 to table6, fig1 to fig9, section5, methods; all of them if none is named.

    Example: fheat reproduce --list

    Example: fheat reproduce table2 --rows la-4 --data LA=prepared/la --out reproduced

    Example: fheat reproduce table1 table6 --data prepared --iterations 4000 --seeds 0

    Example: fheat reproduce --data phantoms --scale tiny --out tiny
    """

    items: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ITEM...")] = ()
    """Items such as table2, fig5 or section5."""
    rows: tuple[str, ...] = ()
    """Rows to run and show: a setting such as la-4, a system such as fheat-seg, or both, la-4/fheat-seg."""
    seeds: tuple[int, ...] = ()
    """Seeds of every row; by default those of its record, three in the semi-supervised tables."""
    data: tuple[Path, ...] = ()
    """Datasets as NAME=FOLDER, or one folder that holds la/, pancreas/, brats/ and others; or the word phantoms."""
    out: Path = Path("reproduced")
    """Folder for runs, tables and figures."""
    iterations: int | None = None
    """Number of iterations of a run, by default the 16,000 of the paper; a method with a published number of its own
    takes as large a share of that. Shortened runs are other runs."""
    scale: Literal["full", "tiny"] = "full"
    """tiny runs everything in minutes on synthetic scans (--data phantoms); the numbers then mean nothing."""
    parallel: int | None = None
    """Number of runs at once on each GPU, or on the CPU; by default 1."""
    device: str | None = None
    """cpu, cuda for all GPUs, or cuda:1; GPUs where there are any."""
    list: bool = False
    """Show the state and the cost of every item, and run nothing."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of tables."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Reproduce, "reproduce", arguments)
    _check(options)
    from fheat.experiments.plan import make_plan  # and torch with it, which help does not need
    from fheat.experiments.reproduce import chosen_items
    from fheat.system.progress import progress_bar

    try:
        items = chosen_items(options.items, options.rows)
    except ValueError as error:
        raise UsageError(str(error)) from None
    check_device(options.device)
    with progress_bar("making scans", quiet=options.json) as show:
        plan = make_plan(
            list(map(str, options.data)),
            options.out,
            seeds=options.seeds or None,
            iterations=options.iterations,
            scale=options.scale,
            device=options.device,
            progress=show,
        )
    if options.list:
        _list(items, plan, options)
    else:
        _reproduce(items, plan, options)


def _check(options: Reproduce) -> None:
    phantoms = Path("phantoms") in options.data
    if phantoms != (options.scale == "tiny") or (phantoms and len(options.data) > 1):
        raise UsageError("--data phantoms and --scale tiny belong together, without other data: give both or neither")
    if options.iterations is not None and options.iterations < 2:
        raise UsageError(f"--iterations is {options.iterations}: at least 2")
    if options.parallel is not None and options.parallel < 1:
        raise UsageError(f"--parallel is {options.parallel}: at least 1")
    if any(not 0 <= seed < 2**63 for seed in options.seeds):
        raise UsageError("--seeds takes whole numbers from 0 to 2^63 - 1")


def _list(items: "list[Item]", plan: "Plan", options: Reproduce) -> None:
    from fheat.experiments.overview import footnotes, overview, overview_sheet
    from fheat.system.progress import progress_bar

    with progress_bar("looking at runs and networks"):
        states = overview(items, plan)
    if options.json:
        print(json.dumps([state.to_json() for state in states], indent=1))
    else:
        print("\n".join([overview_sheet(states).text(), "", *footnotes(states)]))


def _reproduce(items: "list[Item]", plan: "Plan", options: Reproduce) -> None:
    from fheat.cli.run_screen import run_screen
    from fheat.experiments.engine import Interrupted
    from fheat.experiments.reproduce import as_json, reproduce, to_do

    parallel = options.parallel or (1 if plan.tiny is None else None)  # a process of its own is too long for a tiny run
    try:
        with run_screen(len(to_do(items, plan))) as watcher:
            shown = reproduce(items, plan=plan, parallel=parallel, watcher=watcher)
    except Interrupted as interrupted:
        print("fheat: stopped; runs that were going on are saved, and the same command goes on", file=sys.stderr)
        raise SystemExit(exit_code(interrupted.number)) from None
    if options.json:
        print(as_json(shown))
    else:
        for one in shown:
            print(f"{one}\n\nwrote {', '.join(map(str, one.files))}\n")
        print(f"next: {command('report', plan.runs / 'NAME-KEY')} shows a run on one page")
    failed = {name: reason for one in shown for name, reason in one.failures.items()}
    for name, reason in failed.items():
        print(printable(f"failed {name}: {reason}"), file=sys.stderr)
    if failed:
        raise BadInput(plan.out, f"has {counted(len(failed), 'failure')}", "see the lines above for each")
