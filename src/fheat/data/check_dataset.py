"""Problems of a dataset as a whole: its list of cases, its classes and splits, copies, and scans unlike the others."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

from fheat.data.case import Case, Dataset, Problem
from fheat.data.classes import classes_of, has_regions
from fheat.data.grid import size_on
from fheat.data.plausible import MOST_VOXELS
from fheat.data.preprocessing import Preprocessing
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.text import counted


def listing_problems(dataset: Dataset) -> Iterator[Problem]:
    """Yield problems of the list of cases and of the classes, which can be seen without reading a scan."""
    if not dataset.cases:
        yield Problem("", dataset.root, "cases", "has no cases", "add images where the layout looks for them")
        return
    yield from _class_problems(dataset)
    yield from _split_problems(dataset)
    named = defaultdict(list)
    for case in dataset.cases:
        named[case.id].append(case)
    for name, cases in named.items():
        splits = sorted({case.split for case in cases})
        if len(splits) > 1:
            reason = f"is in the splits {' and '.join(splits)}"
            yield Problem(name, cases[1].images[0], "split", reason, "keep it in one of them")
        elif len(cases) > 1:
            yield Problem(name, cases[1].images[0], "id", f"is listed {len(cases)} times", "keep one of them")


def _class_problems(dataset: Dataset) -> Iterator[Problem]:
    try:
        classes_of(dataset)
    except BadInput as error:
        yield Problem("", error.path, "labels", error.reason, error.remedy)
    if has_regions(dataset):
        try:
            classes_of(dataset, regions=True)
        except BadInput as error:  # methods that train exclusive classes take them
            yield Problem("", error.path, "labels", error.reason, error.remedy, "warning")


def _split_problems(dataset: Dataset) -> Iterator[Problem]:
    """Yield a problem for a validation scan that is declared unlabelled, and one if no training scan has a label.

    A scan whose label is missing without a declaration has a problem of its own.
    """
    training = dataset.split("train")
    if not training:
        yield Problem("", dataset.root, "split", "has no training scans", "put some in the split train")
    elif all(case.unlabelled for case in training):
        yield Problem("", dataset.root, "split", "has no labelled training scan", "label at least one")
    for case in dataset.split("validation"):
        if case.unlabelled:
            reason = "is held out for validation and has no label"
            yield Problem(case.id, case.images[0], "split", reason, "hold out another")


def channel_problems(dataset: Dataset, channels: Sequence[int | None]) -> Iterator[Problem]:
    """Yield a problem for each scan with another number of channels than most, where the dataset declares no number."""
    counts = Counter(count for count in channels if count is not None)
    if dataset.channels or len(counts) < 2:
        return
    usual = max(counts, key=lambda count: (counts[count], -count))
    for case, count in zip(dataset.cases, channels, strict=True):
        if count not in (None, usual):
            reason = f"has {counted(int(count or 0), 'channel')}, most scans have {usual}"
            yield Problem(case.id, case.images[0], "channels", reason, "add the missing channels or remove the scan")


def size_problems(
    dataset: Dataset, outlines: Sequence[Volume | None], channels: Sequence[int | None], grid: Preprocessing
) -> Iterator[Problem]:
    """Yield a problem for each scan that would be too large on the grid that a run brings all scans to."""
    for case, outline, count in zip(dataset.cases, outlines, channels, strict=True):
        if outline is not None and (voxels := (count or 1) * prod(size_on(outline, grid))) > MOST_VOXELS:
            reason = f"has {voxels:,} voxels on the grid of a run, over {MOST_VOXELS:,}"
            yield Problem(case.id, case.images[0], "spacing", reason, "correct its header, or train with --spacing")


def same_content(dataset: Dataset, contents: Sequence[str | None]) -> Iterator[Problem]:
    """Yield a problem for each copy of an image, which spoils the test in another split or counts twice in the same."""
    same: defaultdict[str, dict[str, Case]] = defaultdict(dict)
    for content, case in zip(contents, dataset.cases, strict=True):
        if content is not None:
            same[content].setdefault(case.id, case)
    for first, *others in (list(cases.values()) for cases in same.values()):
        for case in others:
            leaks = case.split != first.split
            reason = f"has the voxels of {first.id} ({first.split}), itself in {case.split}"
            remedy = "remove one of them" if leaks else "remove one of them unless it is meant"
            severity: Literal["error", "warning"] = "error" if leaks else "warning"
            yield Problem(case.id, case.images[0], "content", reason, remedy, severity)
