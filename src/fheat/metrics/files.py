"""Evaluation of masks on disk: two files, or two folders of them matched by name, become a table of scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fheat.io import read_volume
from fheat.io.confined import reading_threads
from fheat.io.volume import Volume, grid_difference
from fheat.metrics.evaluate import Scores, Unit, evaluate_labels, first_fraction
from fheat.metrics.grids import on_one_grid
from fheat.metrics.pairs import Pair, declared_labels, match_files
from fheat.metrics.table import ScoreRow, Table
from fheat.system.errors import BadInput
from fheat.system.processors import processors
from fheat.system.progress import Progress, silent
from fheat.system.text import printable

MOST_CLASSES: Final = 512
"""Largest number of distinct values in a label map: a file with more is a scan given by mistake."""
LARGEST_LABEL: Final = 2**31
"""Largest label value, and the largest negative one without its sign."""
Labels = Mapping[str, Sequence[int]]
"""Name of each class and the label values that belong to it."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class CaseScores:
    """The scores of one case, class by class, and the values in its two files that belong to no class."""

    scores: Mapping[str, Scores]
    stray: tuple[set[int], set[int]]


def evaluate_files(
    prediction: str | Path,
    reference: str | Path,
    *,
    labels: Labels | None = None,
    voxels: bool = False,
    tolerance: float = 2.0,
    only_predicted: bool = False,
    patterns: Sequence[str] = (),
    workers: int | None = None,
    progress: Progress = silent,
    versions: Mapping[str, str] | None = None,
) -> Table:
    """Compare two masks, NIfTI files or DICOM SEGs, or two folders of them matched by name, case by case.

    Args:
        prediction: file or folder of the predicted masks.
        reference: file or folder of the reference masks; their spacing measures the distances.
        labels: classes and their label values; by default those of `dataset.json` in the reference folder or the one
            above, else every value other than 0 in the references is a class.
        voxels: whether distances are in voxels instead of millimetres.
        tolerance: distance that counts as near in the surface Dice, in that unit.
        only_predicted: whether references without a prediction are left out, with a note, instead of refused.
        patterns: names of the predictions and of the references below their folders; see `match_files`.
        workers: number of cases that are evaluated at the same time; one for each usable processor if not given.
        progress: called with the number of cases done and their total.
        versions: versions of programs to write into the table.

    Rows are sorted by case. Refused cases, with reasons, are in `refused`; predictions without a reference, and values
    that belong to no class, are in `notes`.
    """
    sources = Path(prediction), Path(reference)
    pairs, refused, notes = match_files(*sources, only_predicted=only_predicted, patterns=patterns)
    classes = labels or declared_labels(Path(reference))
    if classes is None:
        held = _for_each(_reference_values, pairs, refused, workers, progress)
        classes = {str(value): (value,) for value in sorted(set().union(*held.values()) - {0})}
        pairs = [pair for pair in pairs if pair.case in held]
        if held and not classes:
            raise BadInput(reference, "holds no value other than 0", "name the classes that it could hold")
    known_classes = classes

    def score(pair: Pair) -> CaseScores:
        return _score_case(pair, known_classes, voxels=voxels, tolerance=tolerance)

    results = _for_each(score, pairs, refused, workers, progress)
    absent = [name for name in classes if all(case.scores[name].case == "both_empty" for case in results.values())]
    if results and absent:
        values = ", ".join(f"{name} = {', '.join(map(str, classes[name]))}" for name in absent)
        if labels:
            raise BadInput(reference, f"no mask holds {values}", "check the values of the classes")
        notes.append(f"no mask holds {values}")
    rows = [ScoreRow(case, name, scores) for case, result in results.items() for name, scores in result.scores.items()]
    notes += _stray_notes(results)
    unit: Unit = "voxels" if voxels else "mm"
    reasons = {case: printable(refused[case]) for case in sorted(refused)}
    names = printable(prediction), printable(reference)
    return Table(tuple(rows), unit, tolerance, *names, reasons, tuple(map(printable, notes)), versions or {})


def _stray_notes(results: Mapping[str, CaseScores]) -> list[str]:
    """Return notes on the values in predictions and in references that belong to no class."""
    notes = []
    for side, what in enumerate(("predictions", "references")):
        stray = [result.stray[side] for result in results.values() if result.stray[side]]
        if stray:
            values = ", ".join(map(str, sorted(set[int]().union(*stray))))
            notes.append(f"{what} hold values that belong to no class: {values} (cases: {len(stray)})")
    return notes


def _for_each(
    work: Callable[[Pair], Result],
    pairs: Sequence[Pair],
    refused: dict[str, str],
    workers: int | None,
    progress: Progress,
) -> dict[str, Result]:
    """Return the results of `work` by case, in order; cases that cannot be used are added to `refused`."""

    def attempt(pair: Pair) -> Result | str:
        try:
            return work(pair)
        except BadInput as error:
            return str(error)
        except MemoryError:
            return f"{pair.reference}: does not fit into memory; use fewer workers"

    threads = min(workers or processors(), len(pairs) or 1)
    results = []
    with reading_threads(threads) as pool:
        for result in pool.map(attempt, pairs):
            results.append(result)
            progress(len(results), len(pairs))
    by_case = {pair.case: result for pair, result in zip(pairs, results, strict=True)}
    refused.update({case: result for case, result in by_case.items() if isinstance(result, str)})
    return {case: result for case, result in by_case.items() if not isinstance(result, str)}


def _score_case(pair: Pair, labels: Labels, *, voxels: bool, tolerance: float) -> CaseScores:
    prediction, predicted_values = _read_label_map(pair.prediction)
    reference, true_values = _read_label_map(pair.reference)
    partial = pair.prediction.suffix == ".dcm", pair.reference.suffix == ".dcm"
    if any(partial):
        try:
            prediction, reference = on_one_grid(prediction, reference, partial)
        except ValueError as error:
            raise BadInput(pair.prediction, str(error), "give masks of one scan") from None
    elif difference := grid_difference(reference, prediction):
        reason = f"field {difference.field} is {difference.second}, that of the reference {difference.first}"
        raise BadInput(pair.prediction, reason, "resample it to the reference")
    known = {0}.union(*labels.values())
    spacing = None if voxels else reference.spacing
    scores = evaluate_labels(prediction.data, reference.data, labels, spacing, tolerance=tolerance)
    return CaseScores(scores, (predicted_values - known, true_values - known))


def _reference_values(pair: Pair) -> set[int]:
    return _read_label_map(pair.reference)[1]


def _read_label_map(path: Path) -> tuple[Volume, set[int]]:
    """Return the label map in a file and the values it holds, or raise `BadInput`."""
    volume = read_volume(path)
    if volume.data.ndim != 3:
        raise BadInput(path, f"has shape {volume.data.shape}: a label map is (X, Y, Z)", "give one label per voxel")
    fraction = first_fraction(volume.data)
    if fraction is not None:
        raise BadInput(path, f"holds {fraction!r}: label values are whole numbers", "give a mask, not probabilities")
    values = distinct_values(volume.data)
    if max(values) > LARGEST_LABEL or min(values) < -LARGEST_LABEL:
        raise BadInput(path, f"holds values from {min(values)} to {max(values)}", "give a label map")
    if len(values) > MOST_CLASSES:
        raise BadInput(path, f"holds {len(values):,} distinct values: it looks like a scan", "give a label map")
    return volume, values


def distinct_values(data: NDArray[Any]) -> set[int]:
    """Return the values of a label map; they are marked plane by plane, because sorting a whole scan takes longer."""
    low, high = int(data.min()), int(data.max())
    if high - low >= 2**20:
        return {int(value) for value in np.unique(data)}
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    for plane in data:
        seen[plane.astype(np.int64) - low] = True
    return {int(value) + low for value in np.flatnonzero(seen)}
