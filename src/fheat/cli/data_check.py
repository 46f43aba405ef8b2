"""`fheat data check FOLDER`: list every case with its geometry and labels, and all problems."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.data.check import WORKERS, CheckRow, Report, check
from fheat.data.fingerprint import Fingerprint
from fheat.data.grid import fitting_patch
from fheat.data.layouts import open_dataset
from fheat.system.errors import BadInput
from fheat.system.progress import progress_bar
from fheat.system.text import grid_name, printable


@dataclass(frozen=True)
class Check:
    """Read every case of a dataset and list what is wrong with it; exits with 3 if anything makes it unfit. With --json
    it prints a fingerprint of the training scans too: spacings, shapes, and intensities inside the labels.

    Example: fheat data check Dataset001 --json
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Dataset folder in a known layout (docs/reference/data.md lists them), or a MONAI datalist."""
    workers: int = WORKERS
    """Number of cases that are read at the same time."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Check, "data check", arguments)
    if options.workers < 1:
        raise UsageError(f"--workers is {options.workers}: at least 1")
    dataset = open_dataset(options.folder)
    with progress_bar("reading") as show:
        report = check(dataset, workers=options.workers, progress=show)
    if options.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        _print(report)
    if errors := report.errors:
        cases = len({problem.case for problem in errors if problem.case})
        where = f" in {cases} of {len(report.rows)} cases" if cases else ""
        raise BadInput(options.folder, f"{len(errors)} errors{where}", "correct what is listed and check again")


def _print(report: Report) -> None:
    dataset = report.dataset
    table = Table(title=printable(f"{dataset.name} ({dataset.layout}), {len(report.rows)} cases"))
    table.add_column("case", no_wrap=True)
    for heading in ("split", "channels", "shape", "spacing, mm", "axes", "voxels per label", "content"):
        table.add_column(heading)
    for row in report.rows:
        table.add_row(*map(printable, _cells(row)))
    if report.rows:
        Console(width=max(Console().width, 140), markup=False).print(table)
    for problem in report.problems:
        name = f"{problem.case}: " if problem.case else ""
        reason = f"{problem.path}: {problem.reason}; {problem.remedy}"
        print(printable(f"{problem.severity}: {name}{problem.field}: {reason}"))
    for split, counts in report.counts.items():
        print(printable(f"{split}: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}"))
    if report.fingerprint is not None:
        print(_grid_line(report.fingerprint))
    warnings = len(report.problems) - len(report.errors)
    print(f"{len(report.rows)} cases, {len(report.errors)} errors, {warnings} warnings.")


def _grid_line(fingerprint: Fingerprint) -> str:
    """Return what a run would bring the training scans to, and the patch that it then needs."""
    from fheat.training.settings import DataSettings  # of no use until all is read

    grid, usual = fingerprint.grid, DataSettings.model_fields["patch_size"].default
    spacing = "x".join(f"{step:.4g}" for step in grid.spacing or ())
    fitting = fitting_patch(fingerprint.sizes, usual)
    patch = "" if fitting == usual else f"; train with --patch-size {' '.join(map(str, fitting))}"
    return f"grid of a run: {grid.orientation}, {spacing} mm, median size {grid_name(fingerprint.median_size)}{patch}"


def _cells(row: CheckRow) -> tuple[str, ...]:
    if row.shape is None or row.spacing is None:
        return row.case, row.split, *("-" * 6)
    shape, spacing = "x".join(map(str, row.shape)), "x".join(f"{step:.4g}" for step in row.spacing)
    labels, content = _labels(row), str(row.content)[:8]
    return row.case, row.split, str(row.channels), shape, spacing, str(row.orientation), labels, content


def _labels(row: CheckRow) -> str:
    if row.labels is None or isinstance(row.labels, str):
        return row.labels or "-"
    return ", ".join(f"{value}: {count:,}" for value, count in row.labels.items())
