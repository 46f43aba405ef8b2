"""`fheat report RUN`: write the report of a run, one HTML page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.report.write import SCANS, write_report
from fheat.system.progress import progress_bar


@dataclass(frozen=True)
class ReportOptions:
    """Write the report of a run that ended, was interrupted or still goes on: a summary, allocation, gates, responses,
    probes, cost, losses, validation, slices with contours, settings. It is one HTML file that needs no other file. The
    log and the settings of the run suffice; sections that need the network or the dataset then say so.

    Example: fheat report run --out run.html --figures figures
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, the --out of fheat train."""
    out: Path | None = None
    """File to write; report.html in the run folder if not given."""
    figures: Path | None = None
    """Folder that every figure of the page is written into as well: SVG, slices as PNG, captions.json."""
    scans: int = SCANS
    """Number of validation scans that are segmented and shown."""
    inside: bool = False
    """Run the network over all validation scans as well, to show what its bottom blocks add and where it attends."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print the path of the report as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(ReportOptions, "report", arguments)
    if options.scans < 0:
        raise UsageError(f"scans={options.scans} is negative: give 0 or more")
    with progress_bar("writing the report") as show:
        path = write_report(
            options.run,
            options.out,
            figures=options.figures,
            scans=options.scans,
            inside=options.inside,
            progress=show,
        )
    written = {"report": str(path)} | ({} if options.figures is None else {"figures": str(options.figures)})
    print(json.dumps(written) if options.json else f"wrote {' and '.join(written.values())}")
