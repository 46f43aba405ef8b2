"""`fheat data phantom DST`: write synthetic scans with labels, to try the other verbs without data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.data.phantom import SMALLEST, write_phantoms
from fheat.system.progress import progress_bar
from fheat.system.text import printable


@dataclass(frozen=True)
class DataPhantom:
    """Write synthetic scans of a chamber like the left atrium, with thin veins and similar neighbours, and their
    labels, in the nnU-Net raw layout. The same seed gives the same files.

    Example: fheat data phantom phantoms --cases 40
    """

    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
    """Folder to write; it must be new or empty."""
    cases: int = 40
    """Number of scans for training and validation."""
    test: int = 8
    """Number of additional scans for testing."""
    seed: int = 0
    """Seed of the random generator."""
    shape: tuple[int, int, int] = (112, 96, 72)
    """Number of voxels of each scan along its axes."""
    json: bool = False
    """Print what was written as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(DataPhantom, "data phantom", arguments)
    if options.cases < 1 or options.test < 0:
        raise UsageError(f"cases={options.cases}, test={options.test}: give at least 1 and 0")
    if min(options.shape) < SMALLEST:
        raise UsageError(f"shape={options.shape} is too small: give at least {SMALLEST} voxels per axis")
    if options.seed < 0:
        raise UsageError(f"seed={options.seed} is negative: give 0 or more")
    with progress_bar("phantoms") as show:
        write_phantoms(
            options.target,
            options.cases,
            seed=options.seed,
            shape=options.shape,
            test=options.test,
            progress=show,
        )
    if options.json:
        written = {"target": str(options.target), "cases": options.cases, "test": options.test, "seed": options.seed}
        print(json.dumps(written, indent=1))
    else:
        print(printable(f"{options.cases} scans and {options.test} for testing in {options.target}"))
