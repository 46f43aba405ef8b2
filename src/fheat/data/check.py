"""Checking a dataset: read every case once and report all problems before training is started on it."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Case, Dataset, Problem
from fheat.data.orientation import reorient
from fheat.data.plausible import check_plausible, microscopic
from fheat.data.preprocessing import Preprocessing
from fheat.data.read import fractions, integers, read_image, read_stored_label
from fheat.io.volume import Volume, grid_difference
from fheat.system.errors import BadInput
from fheat.system.progress import Progress

WORKERS: Final = min(4, os.cpu_count() or 1)
"""Default number of threads."""


@dataclass(frozen=True)
class CheckRow:
    """The contents of one case; fields are None if it could not be read."""

    case: str
    split: str
    channels: int | None = None
    shape: tuple[int, ...] | None = None
    spacing: tuple[float, float, float] | None = None
    orientation: str | None = None
    labels: Mapping[int, int] | Literal["unlabelled"] | None = None
    """Number of voxels of each label value, or `unlabelled` if the case is declared to have no label."""
    content: str | None = None
    """SHA-256 of shape and voxels; equal for copies of an image, even in another type, format or orientation."""


@dataclass(frozen=True)
class Report:
    """The result of a check: one row per case, in the order of the dataset, and all problems."""

    dataset: Dataset
    rows: tuple[CheckRow, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make the dataset unfit for training."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "dataset": self.dataset.name,
            "root": str(self.dataset.root),
            "layout": self.dataset.layout,
            "labels": {name: list(values) for name, values in self.dataset.labels.items()},
            "channels": list(self.dataset.channels),
            "cases": [asdict(row) for row in self.rows],
            "problems": [asdict(problem) | {"path": str(problem.path)} for problem in self.problems],
        }


def check(dataset: Dataset, *, workers: int = WORKERS, progress: Progress | None = None) -> Report:
    """Read every voxel once and report all problems; an empty dataset is a problem too.

    Args:
        dataset: from `fheat.data.layouts.open_dataset`.
        workers: number of threads, each of which holds one case at a time.
        progress: called with the number of cases done and their total.
    """
    rows, problems = [], [*dataset.problems, *_listing_problems(dataset)]
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        results = pool.map(lambda case: _check_case(case, dataset), dataset.cases)
        for done, (row, case_problems) in enumerate(results, start=1):
            rows.append(row)
            problems += case_problems
            if progress is not None:
                progress(done, len(dataset.cases))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interruption waits for nothing
    problems += _same_content(dataset, rows)
    return Report(dataset, tuple(rows), tuple(problems))


def _check_case(case: Case, dataset: Dataset) -> tuple[CheckRow, list[Problem]]:
    problems = [_missing_label(case)] if case.label is None and not case.unlabelled else []
    try:
        image = read_image(case)
    except BadInput as error:
        return CheckRow(case.id, case.split), [
            *problems,
            Problem(case.id, error.path, "image", error.reason, error.remedy),
        ]
    problems += _image_problems(case, image, dataset)
    labels: Mapping[int, int] | Literal["unlabelled"] | None = "unlabelled" if case.unlabelled else None
    if case.label is not None:
        labels, label_problems = _check_label(case, image, dataset)
        problems += label_problems
    row = CheckRow(
        case=case.id,
        split=case.split,
        channels=1 if image.data.ndim == 3 else image.data.shape[3],
        shape=image.data.shape[:3],
        spacing=image.spacing,
        orientation=image.orientation,
        labels=labels,
        content=_content_hash(reorient(image, "RAS").data),
    )
    return row, problems


def _missing_label(case: Case) -> Problem:
    reason = "has no label and is not declared unlabelled"
    return Problem(case.id, case.images[0], "label", reason, "add its label or declare it unlabelled")


def _image_problems(case: Case, image: Volume, dataset: Dataset) -> Iterator[Problem]:
    path, channels = case.images[0], image.data.reshape(*image.data.shape[:3], -1)
    count, declared = channels.shape[3], len(dataset.channels)
    if declared and count != declared:
        reason = f"has {count} channels, the dataset declares {declared}"
        yield Problem(case.id, path, "channels", reason, "add the missing channels or correct the declaration")
    yield from _size_problems(case, image)
    constant = [index for index in range(count) if channels[..., index].min() == channels[..., index].max()]
    if len(constant) == count:
        reason = f"holds the value {channels.flat[0]:g} everywhere"
        yield Problem(case.id, path, "values", reason, "export the image again")
    elif constant:
        reason = f"channels {constant} hold one value everywhere"
        yield Problem(case.id, path, "values", reason, "check that they are meant to be empty", "warning")


def _size_problems(case: Case, image: Volume) -> Iterator[Problem]:
    path, scan = case.images[0], Preprocessing().scan(image)
    try:
        check_plausible(path, scan)
    except BadInput as error:
        yield Problem(case.id, path, "spacing", error.reason, error.remedy)
    if small := microscopic(scan):
        yield Problem(case.id, path, "spacing", str(small[0]), "check its unit", "warning")


def _check_label(case: Case, image: Volume, dataset: Dataset) -> tuple[Mapping[int, int] | None, list[Problem]]:
    """Return the number of voxels of each value (None if they cannot be counted), and the problems of the label."""
    assert case.label is not None
    try:
        label = read_stored_label(case)
    except BadInput as error:
        return None, [Problem(case.id, error.path, "label", error.reason, error.remedy)]
    if label is None:
        return None, [_missing_label(case)]
    problems = []
    if difference := grid_difference(image, label):
        reason = f"label has {difference.second}, the image {difference.first}"
        remedy = "resample the label onto the image's grid or correct its header"
        problems.append(Problem(case.id, case.label, difference.field, reason, remedy))
    data = integers(label.data)
    if data is None:
        reason = f"label holds {fractions(label.data)}"
        return None, [*problems, Problem(case.id, case.label, "values", reason, "round the label or export it again")]
    values = _count(data)
    declared = {value for group in dataset.labels.values() for value in group}
    if declared and (extra := sorted(values.keys() - declared)):
        reason = f"label holds {extra}, the dataset declares {sorted(declared)}"
        problems.append(Problem(case.id, case.label, "values", reason, "map the values or declare them"))
    if values.keys() == {0}:
        remedy = "check that the scan shows nothing to segment"
        problems.append(Problem(case.id, case.label, "values", "label holds only background", remedy, "warning"))
    return values, problems


def _listing_problems(dataset: Dataset) -> Iterator[Problem]:
    """Yield problems of the list of cases: no case, an id that occurs twice, an id in several splits."""
    if not dataset.cases:
        yield Problem("", dataset.root, "cases", "has no cases", "add images where the layout looks for them")
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


def _same_content(dataset: Dataset, rows: list[CheckRow]) -> Iterator[Problem]:
    """Yield a problem for each copy of an image, which spoils the test in another split or counts twice in the same."""
    same: defaultdict[str, dict[str, Case]] = defaultdict(dict)
    for row, case in zip(rows, dataset.cases, strict=True):
        if row.content is not None:
            same[row.content].setdefault(case.id, case)
    for first, *others in (list(cases.values()) for cases in same.values()):
        for case in others:
            leaks = case.split != first.split
            reason = f"has the voxels of {first.id} ({first.split}), itself in {case.split}"
            remedy = "remove one of them" if leaks else "remove one of them unless it is meant"
            severity: Literal["error", "warning"] = "error" if leaks else "warning"
            yield Problem(case.id, case.images[0], "content", reason, remedy, severity)


def _count(labels: NDArray[Any]) -> dict[int, int]:
    """Return the number of voxels of each value, plane by plane, so that no sorted copy of the volume is needed."""
    total: Counter[int] = Counter()
    for index in range(labels.shape[-1]):
        values, counts = np.unique(labels[..., index], return_counts=True)
        total.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return dict(sorted(total.items()))


def _content_hash(data: NDArray[Any]) -> str:
    """Return the SHA-256 of shape and values as float32, so that another stored type does not hide a copy."""
    digest = hashlib.sha256(str(data.shape).encode())
    with np.errstate(over="ignore"):
        digest.update(np.asarray(data, np.float32, order="F").T.data)
    return digest.hexdigest()
