"""`fheat evaluate PRED REF`: score masks against references, or compare two files of scores."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import named_values, parse
from fheat.metrics.evaluate import METRICS
from fheat.metrics.files import evaluate_files
from fheat.metrics.pairs import match_files
from fheat.metrics.significance import compare
from fheat.metrics.table import Table
from fheat.system.errors import BadInput
from fheat.system.files import check_file, write_file
from fheat.system.patterns import check_pattern
from fheat.system.progress import progress_bar

RESULT_ENDINGS: Final = (".json", ".csv")
MOST_REFUSALS_SHOWN: Final = 5
"""Number of refused cases that are printed; --json and --out list all of them."""


@dataclass(frozen=True)
class Evaluate:
    """Score masks against references: two files, NIfTI or DICOM SEG, or two folders matched by file name. Prints Dice,
    Jaccard and surface distances for each case and class, and their means, each with the number of cases behind it.
    Cases that cannot be compared are named, the others are still scored, and the exit code is 3.

    Given two files of results (.json or .csv) instead, test whether the second differs from the first, with a paired
    Wilcoxon signed-rank test for each class and Holm's correction.

    Example: fheat evaluate predictions labelsTs --out ours.json

    Example: fheat evaluate masks labelsTs --html page.html --images imagesTs

    Example: fheat evaluate masks cohort --pattern {id}.nii.gz {id}_LGE_seg.nii.gz

    Example: fheat evaluate baseline.json ours.json --metrics dice hd95
    """

    prediction: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PRED")]
    """Predicted mask or folder of masks; or the first file of results."""
    reference: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="REF")]
    """Reference mask or folder; or the second file of results."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of a table."""
    csv: Path | None = None
    """Write the rows to this .csv file as well."""
    out: Path | None = None
    """Write everything to this .json file as well."""
    voxels: bool = False
    """Measure distances in voxels, as the semi-supervised papers do, instead of millimetres."""
    labels: tuple[str, ...] = ()
    """Classes, as NAME=VALUE or NAME=VALUE,VALUE for a region. By default those of dataset.json in the reference folder
    or the one above, else every value other than 0 in the references is a class."""
    tolerance: float = 2.0
    """Distance that counts as near in the surface Dice, in the unit of the distances."""
    html: Path | None = None
    """Write one page that needs no other file as well: distribution of every metric, worst cases first."""
    images: Path | None = None
    """Folder with the scans, named as the masks are; the page of --html then shows the worst cases with contours."""
    pattern: tuple[str, ...] = ()
    """Names of the masks below PRED and below REF, and of the scans below --images, with {id} for the name of a case
    and {any} for any text: {id}.nii.gz {id}_LGE_seg.nii.gz {id}_LGE.nii.gz."""
    only_predicted: bool = False
    """Leave out references that have no prediction, instead of refusing them."""
    workers: int | None = None
    """Number of cases that are evaluated at the same time; one for each usable processor if not given."""
    metrics: tuple[str, ...] = ()
    """Metrics by which two files of results are compared; dice if not given."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Evaluate, "evaluate", arguments)
    _check(options)
    if _is_results(options.prediction):
        _compare(options)
    else:
        _evaluate(options)


def _evaluate(options: Evaluate) -> None:
    with progress_bar("evaluating") as show:
        table = evaluate_files(
            options.prediction,
            options.reference,
            labels=named_values(options.labels),
            voxels=options.voxels,
            tolerance=options.tolerance,
            only_predicted=options.only_predicted,
            patterns=options.pattern[:2],
            workers=options.workers,
            progress=show,
            versions={"fheat": __version__},
        )
    if options.out is not None:
        write_file(options.out, table.to_json().encode())
    if options.csv is not None:
        write_file(options.csv, table.to_csv().encode())
    if options.html is not None:
        write_file(options.html, _page(options, table).encode())
    if options.json:
        print(table.to_json(), end="")
    elif table.rows:
        print(table)
    for note in table.notes:
        print(f"note: {note}", file=sys.stderr)
    if table.refused and options.reference.is_file():  # the only case
        raise BadInput.of_line(*table.refused.values())
    for case, reason in list(table.refused.items())[:MOST_REFUSALS_SHOWN]:
        print(f"refused {case}: {reason}", file=sys.stderr)
    if (more := len(table.refused) - MOST_REFUSALS_SHOWN) > 0:
        print(f"refused {more} more; --json and --out list them all", file=sys.stderr)
    if table.refused:
        total = len(table.refused) + len(table.cases)
        raise BadInput(
            options.prediction, f"{len(table.refused)} of {total} cases refused", "see the lines above for each"
        )


def _page(options: Evaluate, table: Table) -> str:
    """Return the page of --html."""
    from fheat.report.evaluation import CaseFiles, evaluation_page, scans_of  # brings matplotlib

    if options.images is None:
        return evaluation_page(table)
    pairs = match_files(options.prediction, options.reference, only_predicted=True, patterns=options.pattern[:2])[0]
    images = scans_of(table.cases, options.images, next(iter(options.pattern[2:]), None))
    with progress_bar("drawing") as show:
        return evaluation_page(table, CaseFiles({pair.case: pair for pair in pairs}, images), progress=show)


def _compare(options: Evaluate) -> None:
    first, second = Table.read(options.prediction), Table.read(options.reference)
    names = str(options.prediction), str(options.reference)
    try:
        comparison = compare(first, second, options.metrics or "dice", names=names)
    except ValueError as error:
        raise BadInput(
            options.reference,
            f"cannot be compared with {options.prediction} ({error})",
            "give results of the same cases",
        ) from None
    if options.out is not None:
        write_file(options.out, comparison.to_json().encode())
    print(comparison.to_json() if options.json else comparison, end="" if options.json else "\n")


def _check(options: Evaluate) -> None:
    results = [_is_results(path) for path in (options.prediction, options.reference)]
    if any(results) and not all(results):
        raise UsageError("one is a file of results and the other is not: give two of a kind")
    masks_only = ("csv", "labels", "voxels", "tolerance", "only_predicted", "workers", "html", "images", "pattern")
    unused = masks_only if all(results) else ("metrics",)
    for name in unused:
        if getattr(options, name) != getattr(Evaluate, name):
            kind = "two files of results" if all(results) else "masks"
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {kind}: leave it out")
    for name in options.metrics:
        if name not in METRICS:
            raise UsageError(f"no metric {name!r}: use {', '.join(METRICS)}")
    if not 0 <= options.tolerance < float("inf"):
        raise UsageError(f"tolerance={options.tolerance} is not a distance: use a number >= 0")
    if options.workers is not None and options.workers < 1:
        raise UsageError(f"workers={options.workers} is not a count: use 1 or more")
    named_values(options.labels)
    _check_page(options)
    for file, ending in ((options.out, ".json"), (options.csv, ".csv"), (options.html, ".html")):
        if file is None:
            continue
        if file.suffix != ending:
            raise UsageError(f"{file} is not a {ending} file: name it so")
        if os.path.realpath(file) in map(os.path.realpath, (options.prediction, options.reference)):
            raise UsageError(f"{file} is an input: write somewhere else")
        check_file(file)


def _check_page(options: Evaluate) -> None:
    """Refuse scans without a page, and patterns that are too few, too many or no patterns."""
    if options.images is not None and options.html is None:
        raise UsageError("--images is for the page of --html: give its file, too")
    wanted = (0, 2) if options.images is None else (0, 2, 3)
    if len(options.pattern) not in wanted:
        raise UsageError(
            "--pattern takes the names of predictions and references, and with --images those of the scans"
        )
    for pattern in options.pattern:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise UsageError(str(error)) from None


def _is_results(path: Path) -> bool:
    return path.suffix in RESULT_ENDINGS and not path.is_dir()
