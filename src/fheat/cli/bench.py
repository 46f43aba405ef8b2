"""`fheat bench`: gate, training step, window, scan, cold start, reading and cohorts, timed side by side."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import torch
import tyro

from fheat.bench.plan import Plan, What, grids, numbers
from fheat.bench.run import run_plan
from fheat.bench.show import PICTURE, RECORD, tables, write_record
from fheat.bench.step import METHODS
from fheat.bench.timing import Precision
from fheat.cli.main import UsageError
from fheat.cli.options import parse, without_out
from fheat.methods.registry import list_methods, method_class
from fheat.system.files import check_new_file
from fheat.system.progress import progress_bar

MOST_THREADS: Final = 1024
"""Largest number of CPU threads that may be asked for; many more can no system start."""


@dataclass(frozen=True)
class Bench:
    """Time this package and other networks in one run, in shuffled turns, and print ratios.

    WHAT is operator (the gate's transform on every grid of the networks), step (training iterations per second), window
    (one forward pass; with --sizes, --channels or --batches how its time grows), scan (from memory to mask), start
    (from the command to the first mask in fresh processes, without a cache, with an empty and with a filled one,
    beside the scan itself), read (scans by nibabel, by fheat, and into the store of training), cohort (scans segmented
    in turn and overlapping, masks scored one and several at a time), or all, the default, which takes small sizes on a
    CPU. Scans are synthetic. Absolute times hold for the machine they were measured on only.

    Example: fheat bench window --sizes 64,80,96,112,128 --out growth

    Example: fheat bench start --models la-4,light_unetr

    Example: fheat bench read --data my-dataset --cases 10

    Example: fheat bench cohort --cases 12 --scan 512 512 300 --stride 56 56 40
    """

    what: Annotated[What, tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")] = "all"
    """Part to time: all, operator, step, window, scan, start, read or cohort."""
    models: str = ""
    """Networks, separated by commas; ratios refer to the first. Names are those of fheat models, with /open, /survivor
    or /retired for a network with gates, /plain at the end to run it without fused kernels, and /compiled to let
    torch.compile run it, if fheat has no kernels for it; start and cohort also take model folders and names of the zoo,
    such as la-4. By default every network that suits WHAT, for start and cohort fheat_seg/survivor; all has one network
    for these two, the first."""
    device: str | None = None
    """Device, cpu or cuda; a GPU where there is one if not given."""
    rounds: int | None = None
    """Number of measured turns; by default 1 to 25, fewer for parts that take long."""
    precision: Precision | None = None
    """Precision, float32 or bfloat16 (autocast); by default float32, for training on a GPU bfloat16."""
    threads: int | None = None
    """Number of CPU threads; all if not given."""
    patch: tuple[int, int, int] | None = None
    """Voxels of a window or training patch; by default 112x112x80, for training on a CPU fewer."""
    batch: int | None = None
    """Number of windows in a forward pass, by default 1 and in scans 4; for step the number of labelled scans, and of
    unlabelled ones, by default 2."""
    method: str = "both"
    """Training method of step, see fheat train --help; both takes one with and one without unlabelled scans, all takes
    every one."""
    sizes: str = ""
    """Window sizes to grow through, such as 64,96,112x112x80."""
    channels: str = ""
    """Numbers of channels of a gate to grow through, such as 24,48,96."""
    batches: str = ""
    """Batch sizes to grow through, such as 1,2,4,8."""
    scan: tuple[int, int, int] | None = None
    """Voxels of a scan, also of those of start, read and cohort; by default 192x142x88 with windows of 112x112x80."""
    stride: tuple[int, int, int] | None = None
    """Stride of the sliding window; by default 18 18 4 with windows of 112x112x80."""
    cases: int | None = None
    """Number of scans of read, by default 8, and of cohort, by default 4, on a GPU 20."""
    data: Path | None = None
    """Dataset whose first scans read takes; by default synthetic scans are written to a temporary folder."""
    seed: int = 0
    """Seed of weights and inputs."""
    out: Path | None = None
    """Folder for bench.json and bench.png; nothing is written if not given."""
    json: bool = False
    """Print JSON instead of tables."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Bench, "bench", arguments)
    if options.out is not None:
        check_new_file(options.out, RECORD)
    if options.threads is not None:
        if not 1 <= options.threads <= MOST_THREADS:
            raise UsageError(f"threads={options.threads} is not usable: give 1 to {MOST_THREADS:,}")
        torch.set_num_threads(options.threads)
    command = shlex.join(["fheat", "bench", *without_out(arguments)])
    try:
        plan = _plan(options)
        record = run_plan(plan, command, lambda what: progress_bar(what, quiet=options.json))
    except (ValueError, TypeError) as error:
        raise UsageError(str(error).split("\n")[0]) from None
    except torch.OutOfMemoryError:
        raise UsageError("not enough memory on the GPU: give a smaller --patch, --batch or fewer --models") from None
    lines = [json.dumps(record, indent=1) if options.json else tables(record)]
    if options.out is not None:  # before printing, so that a closed pipe does not lose the result
        written = write_record(options.out, record)
        if not options.json:
            lines.append(f"wrote {', '.join(map(str, written))}")
            lines += [f"{PICTURE} was left out: matplotlib is not installed"] if len(written) == 1 else []
    print("\n".join(lines))


def _device(name: str | None) -> str:
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    from fheat.inference.predictor import usable_device  # it imports the libraries that read scans

    return str(usable_device(name))


def _plan(options: Bench) -> Plan:
    return Plan(
        what=options.what,
        device=_device(options.device),
        models=tuple(name.strip() for name in options.models.split(",") if name.strip()),
        rounds=options.rounds,
        precision=options.precision,
        patch=options.patch,
        batch=options.batch,
        methods=_methods(options.method),
        sizes=grids(options.sizes, "sizes") if options.sizes else (),
        channels=numbers(options.channels, "channels") if options.channels else (),
        batches=numbers(options.batches, "batches") if options.batches else (),
        scan=options.scan,
        stride=options.stride,
        cases=options.cases,
        data=options.data,
        seed=options.seed,
    )


def _methods(asked: str) -> tuple[str, ...]:
    if asked == "all":
        return tuple(list_methods())
    return METHODS if asked == "both" else (_known_method(asked),)


def _known_method(name: str) -> str:
    """Return the name of a training method, or raise `UsageError` that names the nearest one."""
    try:
        method_class(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return name
