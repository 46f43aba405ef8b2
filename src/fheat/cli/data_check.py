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
from fheat.data.layouts import open_dataset
from fheat.system.errors import BadInput
from fheat.system.progress import progress_bar
from fheat.system.text import printable


@dataclass(frozen=True)
class Check:
    """Read every case of a dataset and list what is wrong with it; exits with 3 if anything makes it unfit.

    Example: fheat data check Dataset001 --json
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Dataset folder in a known layout (docs/data.md lists them), or a MONAI datalist."""
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
        cases = len({problem.case for problem in errors})
        remedy = "correct what is listed and check again"
        raise BadInput(options.folder, f"{len(errors)} errors in {cases} of {len(report.rows)} cases", remedy)


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
    warnings = len(report.problems) - len(report.errors)
    print(f"{len(report.rows)} cases, {len(report.errors)} errors, {warnings} warnings.")


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
