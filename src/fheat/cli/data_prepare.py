"""`fheat data prepare NAME SOURCE TARGET`: turn the download of a public dataset into one that training reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.data.recipes import RECIPES, RecipeOptions
from fheat.data.recipes.prepare import Preparation, prepare
from fheat.system.errors import BadInput
from fheat.system.progress import progress_bar
from fheat.system.text import printable

VERB = "data prepare"


@dataclass(frozen=True)
class Prepare:
    """Prepare a dataset of the paper in the nnU-Net raw layout, with its official split if there is one.

    Names: la, pancreas-a, pancreas-b, brats2019, msd-task01, abdomenct1k, hnc; docs/evidence/datasets.md says what each
    does.
    Cases that cannot be used are listed and left out; the exit code is then 3.

    Example: fheat data prepare la download/2018LA prepared/la --benchmark-crop --workers 4
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the dataset."""
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Folder of the dataset as downloaded and unpacked."""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """Folder to write; it must be new or empty."""
    benchmark_crop: bool = False
    """Crop around the label, test cases included, as the published benchmarks of la and pancreas do."""
    spacing: tuple[float, float, float] | None = None
    """Spacing in millimetres to resample to (abdomenct1k); by default scans keep their own."""
    flip_labels: str = ""
    """Axes, of x, y, z, along which the stored labels are flipped (pancreas)."""
    workers: int = 1
    """Number of processes; the result does not depend on it."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of text."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Prepare, VERB, arguments)
    chosen = _checked(options)
    with progress_bar("preparing") as show:
        summary = prepare(
            options.name,
            options.source,
            options.target,
            options=chosen,
            version=__version__,
            workers=options.workers,
            progress=show,
        )
    print(json.dumps(summary.to_json(), indent=1) if options.json else _text(summary))
    if summary.refused:
        count = len(summary.refused)
        reason = (
            f"{count} {'case is' if count == 1 else 'cases are'} refused and left out: {', '.join(summary.refused)}"
        )
        raise BadInput(options.source, reason, "repair them and prepare again, or go on without them")


def _checked(options: Prepare) -> RecipeOptions:
    if options.name not in RECIPES:
        raise UsageError(f"no dataset {options.name!r}: use one of {', '.join(RECIPES)}")
    if options.workers < 1:
        raise UsageError(f"--workers {options.workers}: at least 1")
    if options.spacing is not None and not all(0 < step <= 1000 for step in options.spacing):
        raise UsageError(f"--spacing {options.spacing}: millimetres above 0")
    if set(options.flip_labels) - set("xyz") or len(set(options.flip_labels)) != len(options.flip_labels):
        raise UsageError(f"--flip-labels {options.flip_labels}: each of x, y, z at most once")
    chosen = RecipeOptions(options.benchmark_crop, options.spacing, options.flip_labels)
    for name in chosen.chosen():
        if name not in RECIPES[options.name].options:
            known = ", ".join(recipe.name for recipe in RECIPES.values() if name in recipe.options)
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {options.name}, only to {known}")
    return chosen


def _text(summary: Preparation) -> str:
    lines = [f"{summary.name} ({summary.kind}) -> {summary.target}"]
    for part in ("train", "validation", "test", "unlabelled"):
        lines.append(f"  {part:<12}{len(getattr(summary, part)):>5}")
    for name, reason in summary.refused.items():
        lines.append(f"  refused     {name}: {reason}")
    if summary.missing:
        lines.append(f"  missing     {len(summary.missing)} of the official split: {_few(summary.missing)}")
    if summary.left_out:
        lines.append(f"  left out    {len(summary.left_out)} not in the official split: {_few(summary.left_out)}")
    return "\n".join(map(printable, lines))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
