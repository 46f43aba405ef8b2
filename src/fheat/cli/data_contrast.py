"""`fheat data contrast DATASET`: the image gradient along the boundaries of regions, and a test of two of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import given, named_values, parse
from fheat.data.layouts import open_dataset
from fheat.figures.picture import write_pictures
from fheat.metrics.statistics import TEST
from fheat.studies.contrast import (
    BETWEEN,
    NAME,
    ContrastRecord,
    contrast_picture,
    contrast_table,
    measure_contrast,
    read_contrast,
    regions_of,
)
from fheat.system.files import check_folder, write_file
from fheat.system.progress import progress_bar


@dataclass(frozen=True)
class ContrastOptions:
    """Measure the image gradient along the one-voxel boundary band of each region, in every modality and case, and
    test whether two regions differ, with a paired Wilcoxon signed-rank test for each modality.

    Example: fheat data contrast Task01_BrainTumour --figures contrast

    Example: fheat data contrast --from contrast/contrast.json --figures again
    """

    dataset: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")] = None
    """Dataset folder, such as MSD Task01_BrainTumour as downloaded; intensities are taken as stored."""
    regions: tuple[str, ...] = ()
    """Regions, as NAME=VALUE or NAME=VALUE,VALUE. By default those of the dataset where they are nested, else those of
    MSD Task01: whole_tumour=1,2,3 tumour_core=2,3 enhancing_tumour=3."""
    between: tuple[str, str] | None = None
    """The two regions that are compared; tumour_core and enhancing_tumour if not given."""
    cases: int | None = None
    """Largest number of cases to read; all if not given."""
    figures: Path | None = None
    """Folder for the figure (SVG), and for contrast.json with all its numbers."""
    stored: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FILE")] = None
    """A contrast.json from which the figure is drawn again; no data needed."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(ContrastOptions, "data contrast", arguments)
    if options.cases is not None and options.cases < 1:
        raise UsageError(f"--cases is {options.cases}: at least 1")
    if options.between is not None and options.between[0] == options.between[1]:
        raise UsageError(f"--between {' '.join(options.between)} compares a region with itself: name two")
    if options.figures is not None:
        check_folder(options.figures)
    record = _measure(options) if options.stored is None else _read(options, options.stored)
    data = json.dumps(record.content(), indent=1)
    lines = [contrast_table(record), f"mean gradient along one-voxel boundary bands, {record.unit}; p: {TEST}."]
    if options.figures is not None:  # before printing, so that a closed pipe does not lose the result
        paths = write_pictures(options.figures, [contrast_picture(record)])
        write_file(options.figures / NAME, (data + "\n").encode())
        lines.append(f"wrote {', '.join(map(str, [*paths, options.figures / NAME]))}")
    print(data if options.json else "\n".join(lines))


def _read(options: ContrastOptions, path: Path) -> ContrastRecord:
    if options.dataset is not None:
        raise UsageError("--from draws what is stored: leave out the dataset")
    if said := given(options, "regions", "between", "cases"):
        raise UsageError(f"--from draws what is stored: leave out {', '.join(said)}")
    return read_contrast(path)


def _measure(options: ContrastOptions) -> ContrastRecord:
    if options.dataset is None:
        raise UsageError("DATASET is missing: write for example 'fheat data contrast Task01_BrainTumour'")
    dataset = open_dataset(options.dataset)
    regions = named_values(options.regions) or regions_of(dataset)
    between = options.between or BETWEEN
    for name in between:
        if name not in regions:
            raise UsageError(f"no region {name!r}: use two of {', '.join(regions)} with --between")
    with progress_bar("reading") as show:
        return measure_contrast(dataset, regions, between, fheat=__version__, cases=options.cases, progress=show)
