"""`fheat data import FOLDER`: from a folder of scans and labels to a datalist, after a look at what fits together."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from fheat.cli.main import UsageError, command
from fheat.cli.options import named_values, parse
from fheat.data.classes import LARGEST_VALUE
from fheat.data.importing.datalist import (
    Values,
    check_writable,
    datalist,
    label_values,
    named_classes,
    stated,
    with_splits,
    write_datalist,
)
from fheat.data.importing.pairs import Guess, Pair, guess
from fheat.system.errors import BadInput
from fheat.system.progress import progress_bar
from fheat.system.text import aligned, counted, printable

DEFAULT_SHARE = 0.2
"""Share of the labelled scans that validate unless another number is given."""
MOST_ROWS = 60
"""Largest number of rows of the table; with more, those that are sure are left out from the middle."""


@dataclass(frozen=True)
class Import:
    """Find scans, their channels and their labels in a folder by their names, show what belongs together, and write a
    datalist that fheat train reads. Scans without a label become unlabelled ones. No scan is changed or copied. On a
    terminal it asks for the names of the classes and for the number of validation scans; elsewhere options and
    defaults decide, and what is unsure needs --yes.

    Example: fheat data import heart --classes atrium=1 --validation 0.2

    Example: fheat data import download --images "*/lgemri.nrrd" --labels "*/laendo.nrrd" --out heart.json
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder with the scans, in any order; docs/how-to/own-data.md lists the names that are understood."""
    out: Path | None = None
    """Datalist to write, FOLDER/datalist.json unless given. Paths are relative if all files lie below its folder."""
    images: str | None = None
    """Pattern of the scans, such as "*/lgemri.nrrd"; * is any text without a slash, ** any text."""
    labels: str | None = None
    """Pattern of the labels. What the stars stand for in both patterns names the case."""
    classes: tuple[str, ...] = ()
    """Names and label values, such as liver=1 tumour=2, or "whole=1,2,4" for a region."""
    validation: str | None = None
    """Number of labelled scans that validate, or a share of them such as 0.2, unless folders state a split."""
    test: str | None = None
    """Number or share of the labelled scans that are kept for testing; none unless given."""
    seed: int = 0
    """Seed of the choice of validation and test scans."""
    yes: bool = False
    """Ask nothing, and go on where something is unsure."""
    overwrite: bool = False
    """Replace the datalist if it exists."""
    trust: bool = False
    """Read labels in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of a table; nothing is asked."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Import, "data import", arguments)
    given = named_values(options.classes)
    held_out = {name: _amount(f"--{name}", getattr(options, name)) for name in ("validation", "test")}
    folder, out = options.folder, options.out or options.folder / "datalist.json"
    if not folder.is_dir():
        raise BadInput(folder, "is no folder" if folder.exists() else "does not exist", "give a folder with scans")
    check_writable(out, overwrite=options.overwrite)
    known = None if options.images or options.labels else stated(folder)
    found = guess(folder, images=options.images, labels=options.labels) if known is None else known
    if not any(pair.label for pair in found.pairs):
        remedy = "give --labels PATTERN, see docs/how-to/own-data.md"
        raise BadInput(folder, f"holds {counted(len(found.pairs), 'scan')} and no label that fits one", remedy)
    with progress_bar("reading labels") as show:
        values = label_values(found.pairs, show)
    asking = sys.stdin.isatty() and sys.stderr.isatty() and not (options.yes or options.json)
    if not options.json:
        _print_guess(folder, found, values)
    _check_sure(folder, found, options, asking)
    classes = _classes(found, values, given, asking)
    pairs = with_splits(found.pairs, *_counts(found.pairs, held_out, asking), options.seed)
    if not any(pair.split == "train" and pair.label is not None for pair in pairs):
        reason = "would have no labelled scan left to train with, because those that are held out are of one patient"
        raise BadInput(folder, reason, "give --validation 0 --test 0, or put the splits in folders of their own")
    content = datalist(folder.resolve().name, out.parent, pairs, classes, found.channels)
    write_datalist(out, content, overwrite=options.overwrite)
    _report(options, out, found, pairs, classes, values)


def _amount(option: str, text: str | None) -> float | int | None:
    """Return a number of scans, or a share of them below 1."""
    if text is None:
        return None
    try:
        number = float(text) if "." in text else int(text)
    except ValueError:
        raise UsageError(f"{option} takes a number of scans or a share such as 0.2, not {text!r}") from None
    if not (0 <= number < 1 or (isinstance(number, int) and number >= 0)):
        raise UsageError(f"{option} is {text}: give a whole number, or a share below 1")
    return number


def _check_sure(folder: Path, found: Guess, options: Import, asking: bool) -> None:
    unsure = len(found.unsure) + len(found.left_out)
    if not unsure or options.yes:
        return
    if asking and _ask(f"{counted(unsure, 'file')} to look at above. Go on? (yes or no)", "no").lower() in ("y", "yes"):
        return
    if options.json:
        print(json.dumps(_facts(folder, found), indent=1))
    first = found.unsure[0] if found.unsure else None
    example = f"{first.case}: {first.unsure}" if first else f"{found.left_out[0].path}: {found.left_out[0].reason}"
    reason = f"{counted(unsure, 'file')} {'is' if unsure == 1 else 'are'} unsure or left out, such as {example}"
    raise BadInput(folder, reason, "give --yes if that is meant, or --images and --labels")


def _classes(
    found: Guess, values: Values, given: Mapping[str, tuple[int, ...]] | None, asking: bool
) -> dict[str, tuple[int, ...]]:
    """Return the label values of each class: as given, as asked for, or as the files name them."""
    occurring = sorted(values.counts)
    if not any(occurring):
        raise BadInput("labels", "hold nothing but background", "check that they are labels, or give --labels")
    if occurring[0] < 0 or occurring[-1] > LARGEST_VALUE:
        wrong = occurring[0] if occurring[0] < 0 else occurring[-1]
        raise BadInput("labels", f"hold the value {wrong}, outside 0 to {LARGEST_VALUE}", "renumber them")
    if given is None and found.regions:
        given = {name: (value,) for value, name in found.names.items()} | found.regions
    if given is not None:
        listed = {0} | {value for group in given.values() for value in group}
        if left := [value for value in occurring if value not in listed]:
            raise UsageError(f"labels hold the values {occurring}, and --classes does not name {left}")
        return named_classes(values, found.names, given)
    names = {value: name for name, (value,) in named_classes(values, found.names).items()}
    if asking:
        for value in [value for value in names if value]:
            there = f"in {values.counts[value]} of {values.read} labels"
            names[value] = _ask(f"Name of the label value {value}, {there}", names[value])
    if len(set(names.values())) < len(names):
        raise UsageError(f"two classes have one name: {', '.join(names.values())}")
    return {name: (value,) for value, name in names.items()}


def _counts(pairs: Sequence[Pair], held_out: Mapping[str, float | int | None], asking: bool) -> tuple[int, int]:
    """Return how many labelled scans validate and test; one at least is left to train with."""
    free = sum(pair.label is not None and pair.split is None for pair in pairs)
    training = free + sum(pair.label is not None and pair.split == "train" for pair in pairs)
    stated_ones = any(pair.split == "validation" and pair.label is not None for pair in pairs)
    test = _number(held_out["test"], free)
    share = 0 if stated_ones or free < 2 else max(1, _number(DEFAULT_SHARE, free - test))
    validation = share if held_out["validation"] is None else _number(held_out["validation"], free - test)
    if asking and held_out["validation"] is None and not stated_ones and free > 1:
        answer = _ask(f"Labelled scans that validate, of {free - test} (a number or a share)", str(validation))
        validation = _number(_amount("the number of validation scans", answer), free - test)
    if test + validation > free or test + validation >= training:
        raise UsageError(f"{validation} for validation and {test} for testing leave none of {training} to train with")
    return validation, test


def _number(amount: float | int | None, of: int) -> int:
    return round(amount * of) if isinstance(amount, float) else int(amount or 0)


def _ask(question: str, default: str) -> str:
    print(f"{question} [{default}]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise KeyboardInterrupt(130)
    return answer.strip() or default


def _print_guess(folder: Path, found: Guess, values: Values) -> None:
    table = Table(title=printable(f"{folder}: {_summary(found.pairs)}"))
    for heading in ("case", "scan", "label", "split", "unsure"):
        table.add_column(heading, overflow="fold")
    shown = found.pairs
    if len(shown) > MOST_ROWS:
        keep = {id(pair) for pair in (*shown[: MOST_ROWS // 2], *shown[-MOST_ROWS // 4 :], *found.unsure)}
        shown = [pair for pair in shown if id(pair) in keep]
    for pair in shown:
        scan = str(pair.images[0].relative_to(folder))
        scan += f" and {len(pair.images) - 1} more channels" if len(pair.images) > 1 else ""
        label = "-" if pair.label is None else str(pair.label.relative_to(folder))
        table.add_row(*map(printable, (pair.case, scan, label, pair.split or "", pair.unsure)))
    Console(width=max(Console().width, 120), markup=False).print(table)
    if len(shown) < len(found.pairs):
        print(f"{len(found.pairs) - len(shown):,} more are not shown; --json lists all.")
    for one in found.left_out:
        print(printable(f"left out: {one.path}: {one.reason}"))
    if found.channels:
        print(printable(f"channels: {', '.join(found.channels)}"))
    listed = ", ".join(f"{value} (in {count})" for value, count in sorted(values.counts.items()))
    print(f"label values in {values.read} of {counted(values.labels, 'label')}: {listed}")


def _summary(pairs: Sequence[Pair]) -> str:
    labelled = sum(pair.label is not None for pair in pairs)
    return f"{counted(len(pairs), 'scan')}, {labelled} labelled, {len(pairs) - labelled} unlabelled"


def _facts(folder: Path, found: Guess) -> dict[str, Any]:
    """Return what was found as plain values."""
    return {
        "folder": str(folder),
        "channels": list(found.channels),
        "cases": [
            {
                "case": pair.case,
                "images": [str(image) for image in pair.images],
                "label": None if pair.label is None else str(pair.label),
                "split": pair.split,
                "unsure": pair.unsure or None,
            }
            for pair in found.pairs
        ],
        "left_out": [{"path": str(one.path), "reason": one.reason} for one in found.left_out],
    }


def _report(
    options: Import,
    out: Path,
    found: Guess,
    pairs: list[Pair],
    classes: Mapping[str, tuple[int, ...]],
    values: Values,
) -> None:
    unlabelled = any(pair.label is None and pair.split == "train" for pair in pairs)
    following = _next(out, unlabelled, values)
    rows = []
    for split in ("train", "validation", "test"):
        states = [pair.label is not None for pair in pairs if pair.split == split]
        if states:
            rows.append((split, sum(states), len(states) - sum(states)))
    if options.json:
        found.pairs = pairs
        counts = {split: {"labelled": labelled, "unlabelled": others} for split, labelled, others in rows}
        said = {"classes": {name: list(group) for name, group in classes.items()}, "counts": counts, "next": following}
        print(json.dumps({"datalist": str(out)} | _facts(options.folder, found) | said, indent=1))
        return
    table = [("split", "labelled", "unlabelled"), *((split, str(one), str(other)) for split, one, other in rows)]
    print(aligned(table, right=True))
    listed = ", ".join(f"{name} {', '.join(map(str, group))}" for name, group in classes.items())
    print(printable(f"classes: {listed}"))
    stored = sorted({value for group in classes.values() for value in group})
    if stored != list(range(len(stored))):
        print(f"The values {stored} are read as {list(range(len(stored)))}, and masks will hold these.")
    print(printable(f"wrote {out}; next:"))
    print(printable(f"  {following}"))


def _next(out: Path, unlabelled: bool, values: Values) -> str:
    """Return the command that trains on the datalist, with what these scans need."""
    from fheat.data.grid import common_grid, fitting_patch, size_on
    from fheat.data.preprocessing import Preprocessing
    from fheat.methods.registry import list_methods, method_class
    from fheat.training.settings import DataSettings

    words: list[object] = ["train", out]
    if not unlabelled:
        words += ["--method", next(name for name in list_methods() if not method_class(name).needs.unlabelled)]
    wanted = DataSettings.model_fields["patch_size"].default
    grid = common_grid(values.outlines, Preprocessing())
    fitting = fitting_patch([size_on(outline, grid) for outline in values.outlines], wanted)
    if fitting != wanted:
        words += ["--patch-size", *fitting]
    return command(*words, "--out", "run")
