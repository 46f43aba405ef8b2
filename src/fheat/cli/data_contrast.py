"""`fheat data contrast DATASET`: how sharp the images are along the boundaries of regions, and which differ."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import named_values, parse
from fheat.cli.progress import progress_bar
from fheat.data.layouts import open_dataset
from fheat.files import write_file
from fheat.metrics.significance import TEST
from fheat.report.contrast import (
    BETWEEN,
    NAME,
    ContrastRecord,
    contrast_picture,
    contrast_table,
    measure_contrast,
    read_contrast,
    regions_of,
)
from fheat.report.picture import write_pictures


@dataclass(frozen=True)
class ContrastOptions:
    """Measure the image gradient along the one-voxel boundary band of each region, in every modality and case, and
    test whether two regions differ: paired Wilcoxon signed-rank per modality.

    Example: fheat data contrast Task01_BrainTumour --figures contrast

    Example: fheat data contrast --from contrast/contrast.json --figures again
    """

    dataset: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")] = None
    """Dataset folder, such as MSD Task01_BrainTumour as downloaded; intensities are taken as stored."""
    regions: tuple[str, ...] = ()
    """Regions, as NAME=VALUE or NAME=VALUE,VALUE. By default the dataset's own where it has nested ones, else those of
    MSD Task01: whole_tumour=1,2,3 tumour_core=2,3 enhancing_tumour=3."""
    between: tuple[str, str] = BETWEEN
    """The two that are compared."""
    cases: int | None = None
    """At most so many cases."""
    figures: Path | None = None
    """Folder for the figure as SVG and contrast.json with all its numbers."""
    stored: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FILE")] = None
    """Draw the figure again from a contrast.json, without data."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(ContrastOptions, "data contrast", arguments)
    if options.cases is not None and options.cases < 1:
        raise UsageError(f"--cases is {options.cases}: at least 1")
    record = _measured(options) if options.stored is None else _stored(options, options.stored)
    if options.json:
        print(json.dumps(record.content(), indent=1))
    else:
        print(contrast_table(record))
        print(f"mean gradient along one-voxel boundary bands, {record.unit}; p: {TEST}.")
    if options.figures is not None:
        paths = write_pictures(options.figures, [contrast_picture(record)])
        write_file(options.figures / NAME, (json.dumps(record.content(), indent=1) + "\n").encode())
        if not options.json:
            print(f"wrote {', '.join(map(str, [*paths, options.figures / NAME]))}")


def _stored(options: ContrastOptions, path: Path) -> ContrastRecord:
    if options.dataset is not None:
        raise UsageError("--from draws what is stored: leave out the dataset")
    return read_contrast(path)


def _measured(options: ContrastOptions) -> ContrastRecord:
    if options.dataset is None:
        raise UsageError("DATASET is missing: write for example 'fheat data contrast Task01_BrainTumour'")
    dataset = open_dataset(options.dataset)
    regions = named_values(options.regions) or regions_of(dataset)
    for name in options.between:
        if name not in regions:
            raise UsageError(f"no region {name!r}: use two of {', '.join(regions)} with --between")
    with progress_bar("reading") as show:
        return measure_contrast(
            dataset, regions, options.between, fheat=__version__, cases=options.cases, progress=show
        )
