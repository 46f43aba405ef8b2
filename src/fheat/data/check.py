"""Checking a dataset: read every case once and report all problems before training is started on it."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Case, Dataset, Problem
from fheat.data.check_dataset import channel_problems, listing_problems, same_content, size_problems
from fheat.data.classes import declared_values
from fheat.data.fingerprint import Fingerprint, foreground
from fheat.data.grid import outline
from fheat.data.orientation import reorient
from fheat.data.plausible import check_plausible, microscopic
from fheat.data.preprocessing import Preprocessing
from fheat.data.read import fractions, integers, read_image, read_stored_label
from fheat.io.confined import reading_threads
from fheat.io.volume import Volume, grid_difference
from fheat.system.errors import BadInput
from fheat.system.processors import processors
from fheat.system.progress import Progress

WORKERS: Final = min(4, processors())
"""Default number of threads."""
State = Literal["labelled", "unlabelled", "missing"]
MISSING: Final = "has no label and is not declared unlabelled"
"""The reason of a problem: a label is missing."""


@dataclass(frozen=True)
class CheckRow:
    """The contents of one case; fields are None if it could not be read."""

    case: str
    split: str
    state: State
    """Whether it has a label, is declared to have none, or lacks it."""
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
    fingerprint: Fingerprint | None = None
    """Spacing, shape and intensities of the training scans; None where none could be read."""

    @property
    def counts(self) -> dict[str, dict[State, int]]:
        """Number of cases of each split by what label they have; a case that is listed twice counts once."""
        seen = {(row.case, row.split): row.state for row in self.rows}
        states: tuple[State, ...] = ("labelled", "unlabelled", "missing")
        return {
            split: {state: sum(key[1] == split and one == state for key, one in seen.items()) for state in states}
            for split in dict.fromkeys(row.split for row in self.rows)
        }

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
            "counts": self.counts,
            "fingerprint": None if self.fingerprint is None else self.fingerprint.to_json(),
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
    seen: list[_Seen] = []
    with reading_threads(workers) as pool:
        for one in pool.map(lambda case: _check_case(case, dataset), dataset.cases):
            seen.append(one)
            if progress is not None:
                progress(len(seen), len(dataset.cases))
    rows = tuple(one.row for one in seen)
    channels = [row.channels for row in rows]
    problems = [*dataset.problems, *listing_problems(dataset), *(problem for one in seen for problem in one.problems)]
    problems += channel_problems(dataset, channels)
    problems += same_content(dataset, [row.content for row in rows])
    fingerprint = _fingerprint([one for one in seen if one.row.split == "train"])
    if fingerprint is not None:
        implausible = {problem.case for problem in problems if problem.field == "spacing"}
        outlines = [None if one.row.case in implausible else one.outline for one in seen]
        problems += size_problems(dataset, outlines, channels, fingerprint.grid)
    return Report(dataset, rows, tuple(problems), fingerprint)


class _Seen(NamedTuple):
    """Result of the check of one case: its row, its problems, its grid, and intensities inside its label, (C, n)."""

    row: CheckRow
    problems: list[Problem]
    outline: Volume | None = None
    foreground: NDArray[np.float32] | None = None
    lowest: float = 0.0


def _fingerprint(training: Sequence[_Seen]) -> Fingerprint | None:
    """Return the fingerprint of the scans that could be read; None where there are none."""
    outlines = [one.outline for one in training if one.outline is not None]
    inside = [one.foreground for one in training if one.foreground is not None]
    lowest = min((one.lowest for one in training if one.outline is not None), default=0.0)
    return Fingerprint.of(outlines, inside, lowest) if outlines else None


def _check_case(case: Case, dataset: Dataset) -> _Seen:
    problems = [_missing_label(case)] if case.label is None and not case.unlabelled else []
    try:
        image = read_image(case)
    except BadInput as error:
        unread = Problem(case.id, error.path, "image", error.reason, error.remedy)
        return _Seen(CheckRow(case.id, case.split, _state(case)), [*problems, unread])
    problems += _image_problems(case, image, dataset)
    labels: Mapping[int, int] | Literal["unlabelled"] | None = "unlabelled" if case.unlabelled else None
    inside, state = None, _state(case)
    if case.label is not None:
        labels, inside, found = _check_label(case, image, dataset)
        problems += found
        state = "missing" if any(problem.reason == MISSING for problem in found) else state
    row = CheckRow(
        case=case.id,
        split=case.split,
        state=state,
        channels=1 if image.data.ndim == 3 else image.data.shape[3],
        shape=image.data.shape[:3],
        spacing=image.spacing,
        orientation=image.orientation,
        labels=labels,
        content=_content_hash(reorient(image, "RAS").data),
    )
    return _Seen(row, problems, outline(image), inside, float(image.data.min()))


def _state(case: Case) -> State:
    return "unlabelled" if case.unlabelled else "missing" if case.label is None else "labelled"


def _missing_label(case: Case) -> Problem:
    return Problem(case.id, case.images[0], "label", MISSING, "add its label or declare it unlabelled")


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


def _check_label(
    case: Case, image: Volume, dataset: Dataset
) -> tuple[Mapping[int, int] | None, NDArray[np.float32] | None, list[Problem]]:
    """Return the number of voxels of each value (None if they cannot be counted), a sample of the intensities inside
    the label, and its problems."""
    assert case.label is not None
    try:
        label = read_stored_label(case)
    except BadInput as error:
        return None, None, [Problem(case.id, error.path, "label", error.reason, error.remedy)]
    if label is None:
        return None, None, [_missing_label(case)]
    problems = []
    if difference := grid_difference(image, label):
        reason = f"label has {difference.second}, the image {difference.first}"
        remedy = "resample the label onto the image's grid or correct its header"
        problems.append(Problem(case.id, case.label, difference.field, reason, remedy))
    data = integers(label.data)
    if data is None:
        reason = f"label holds {fractions(label.data)}"
        wrong = Problem(case.id, case.label, "values", reason, "round the label or export it again")
        return None, None, [*problems, wrong]
    values = _count(data)
    declared = declared_values(dataset)
    if extra := sorted(values.keys() - declared):
        says = f"declares {sorted(declared)}" if dataset.labels else "names no classes, so only 0 and 1 may occur"
        remedy = "map the values or declare them" if dataset.labels else "name the classes with fheat data import"
        problems.append(Problem(case.id, case.label, "values", f"label holds {extra}, the dataset {says}", remedy))
    if values.keys() == {0}:
        remedy = "check that the scan shows nothing to segment"
        problems.append(Problem(case.id, case.label, "values", "label holds only background", remedy, "warning"))
    inside = foreground(image, data) if data.shape == image.data.shape[:3] else None
    return values, inside, problems


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
