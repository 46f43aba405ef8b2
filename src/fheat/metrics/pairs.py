"""Names of classes, from the `dataset.json` that nnU-Net and the Medical Segmentation Decathlon put beside masks."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fheat.io.nifti import read_nifti
from fheat.io.volume import Volume, grid_difference
from fheat.metrics.evaluate import Scores, Unit, evaluate_labels, first_fraction
from fheat.metrics.formatting import printable
from fheat.metrics.table import CaseRow, Table
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent

_NAME_THEM: Final = "mend it or name the classes yourself"


def declared_labels(reference: Path) -> dict[str, tuple[int, ...]] | None:
    """Return class to values as declared beside the reference masks or one folder above, or None where nothing is.

    Background, the value 0, is not a class. nnU-Net: `"liver": 1`, regions `"whole tumour": [1, 2, 3]`; Decathlon:
    `"1": "liver"`.
    """
    real = Path(os.path.realpath(reference))
    folder = real if real.is_dir() else real.parent
    for file in (folder / "dataset.json", folder.parent / "dataset.json"):
        if file.is_file():
            return _labels(file)
    return None


def _labels(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(file, f"is not JSON ({error})", _NAME_THEM) from None
    stated = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(stated, dict) or not stated:
        raise BadInput(file, "field labels is missing or empty", _NAME_THEM)
    labels: dict[str, tuple[int, ...]] = {}
    for key, value in stated.items():
        name, values = _entry(file, key, value)
        if name in labels:
            raise BadInput(file, f"field labels names {name!r} twice", _NAME_THEM)
        if name == "ignore":
            raise BadInput(
                file, "field labels.ignore: voxels to leave out are not supported", "name the classes yourself"
            )
        labels[name] = values
    classes = {name: values for name, values in labels.items() if values != (0,)}
    if not classes:
        raise BadInput(file, "field labels names only the background", _NAME_THEM)
    return classes


def _entry(file: Path, key: str, value: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(value, str) and value and key.isdecimal():
        return value, (int(key),)
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(item) is int for item in values):
        raise BadInput(file, f"field labels.{key} is {value!r}: expected a value or a list of values", _NAME_THEM)
    return key, tuple(values)


ENDINGS: Final = (".nii.gz", ".nii")
MOST_CLASSES: Final = 512
"""More distinct values than this are a scan given by mistake, not labels."""
LARGEST_LABEL: Final = 2**31
Labels = Mapping[str, Sequence[int]]
"""Called with (cases done, all cases)."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pair:
    """The two files of one case."""

    case: str
    prediction: Path
    reference: Path


@dataclass(frozen=True)
class Compared:
    """What one case scored, and the values in its files that belong to no class."""

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
    workers: int | None = None,
    progress: Progress = silent,
    versions: Mapping[str, str] | None = None,
) -> Table:
    """Compare two NIfTI files, or two folders of them matched by name, case by case.

    Args:
        prediction: file or folder.
        reference: of the same kind; its spacing measures the distances.
        labels: class to values; by default those of `dataset.json` in the reference folder or the one above, else
            every value other than 0 in the references is a class.
        voxels: measure in voxels instead of millimetres.
        tolerance: of the surface Dice, in that unit.
        only_predicted: leave out references without a prediction, with a note, instead of refusing them.
        workers: cases at a time; as many as there are cores if not given.
        progress: see `Progress`.
        versions: written into the table.

    Rows are sorted by case. Refused cases, with reasons, are in `refused`; predictions without a reference, and values
    that belong to no class, in `notes`.
    """
    pairs, refused, notes = match(Path(prediction), Path(reference), only_predicted=only_predicted)
    asked, labels = labels, labels or declared_labels(Path(reference))
    if labels is None:
        found = _each(_reference_values, pairs, refused, workers, progress)
        labels = {str(value): (value,) for value in sorted(set().union(*found.values()) - {0})}
        pairs = [pair for pair in pairs if pair.case in found]
        if found and not labels:
            raise BadInput(reference, "holds no value other than 0", "name the classes that it could hold")
    classes = labels

    def compared(pair: Pair) -> Compared:
        return _compared(pair, classes, voxels=voxels, tolerance=tolerance)

    results = _each(compared, pairs, refused, workers, progress)
    absent = [name for name in classes if all(one.scores[name].case == "both_empty" for one in results.values())]
    if results and absent:
        values = ", ".join(f"{name} = {', '.join(map(str, classes[name]))}" for name in absent)
        if asked:
            raise BadInput(reference, f"no mask holds {values}", "check the values of the classes")
        notes.append(f"no mask holds {values}")
    rows = [CaseRow(case, name, scores) for case, result in results.items() for name, scores in result.scores.items()]
    notes += _stray_notes(results)
    unit: Unit = "voxels" if voxels else "mm"
    reasons = {case: printable(refused[case]) for case in sorted(refused)}
    sources = printable(str(prediction)), printable(str(reference))
    return Table(tuple(rows), unit, tolerance, *sources, reasons, tuple(map(printable, notes)), versions or {})


def _stray_notes(results: Mapping[str, Compared]) -> list[str]:
    notes = []
    for side, what in enumerate(("predictions", "references")):
        stray = [result.stray[side] for result in results.values() if result.stray[side]]
        if stray:
            values = ", ".join(map(str, sorted(set[int]().union(*stray))))
            notes.append(f"{what} hold values that belong to no class: {values} (cases: {len(stray)})")
    return notes


def match(
    prediction: Path, reference: Path, *, only_predicted: bool = False
) -> tuple[list[Pair], dict[str, str], list[str]]:
    """Return the pairs sorted by case, the cases refused with reasons, and notes on predictions left over.

    The case is the file name without `.nii` or `.nii.gz`. nnU-Net's channel `_0000` is no part of it where only one of
    the two files has it.
    """
    for path in (prediction, reference):
        if not path.exists():
            raise BadInput(path, "does not exist", "check the path")
    if prediction.is_dir() != reference.is_dir():
        folder, file = (prediction, reference) if prediction.is_dir() else (reference, prediction)
        raise BadInput(folder, f"is a folder and {file} a file", "give two files or two folders")
    if reference.is_file():
        return [Pair(_case_id(reference), prediction, reference)], {}, []
    predicted, true = _by_case(prediction), _by_case(reference)
    predicted, true = _without_channel(predicted, true), _without_channel(true, predicted)
    if not true:
        raise BadInput(reference, "holds no .nii or .nii.gz file", "give the folder with the reference masks")
    if not predicted and any(file.suffix == ".dcm" for file in prediction.iterdir()):
        raise BadInput(prediction, "holds DICOM files and masks are read from NIfTI", "predict with --format nifti")
    pairs, refused, left_out = [], {}, []
    for case in sorted(true):
        files = predicted.get(case, [])
        if len(files) == len(true[case]) == 1:
            pairs.append(Pair(case, files[0], true[case][0]))
        elif not files and only_predicted:
            left_out.append(case)
        elif not files:
            refused[case] = f"{prediction}: has no prediction for {case!r}; predict it or pass --only-predicted"
        else:
            several = files if len(files) > 1 else true[case]
            names = " and ".join(file.name for file in several)
            refused[case] = f"{several[0].parent}: holds {names} for one case; keep one"
    extra = [file.name for case in sorted(predicted.keys() - true.keys()) for file in predicted[case]]
    notes = [f"predictions without a reference: {', '.join(extra)}"] if extra else []
    if left_out:
        notes.append(f"{len(left_out)} references without a prediction are left out")
    if not pairs and not refused:
        raise BadInput(prediction, f"has no prediction for any case of {reference}", "check the names of the files")
    return pairs, refused, notes


def _each(
    work: Callable[[Pair], Result],
    pairs: Sequence[Pair],
    refused: dict[str, str],
    workers: int | None,
    progress: Progress,
) -> dict[str, Result]:
    """Return what `work` makes of every pair, in order; what it refuses goes to `refused`."""

    def attempt(pair: Pair) -> Result | str:
        try:
            return work(pair)
        except BadInput as error:
            return str(error)
        except MemoryError:
            return f"{pair.reference}: does not fit into memory; use fewer workers"

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        found = []
        for result in pool.map(attempt, pairs):
            found.append(result)
            progress(len(found), len(pairs))
    finally:
        pool.shutdown(cancel_futures=True)
    by_case = {pair.case: result for pair, result in zip(pairs, found, strict=True)}
    refused.update({case: result for case, result in by_case.items() if isinstance(result, str)})
    return {case: result for case, result in by_case.items() if not isinstance(result, str)}


def _compared(pair: Pair, labels: Labels, *, voxels: bool, tolerance: float) -> Compared:
    (prediction, predicted), (reference, true) = _label_map(pair.prediction), _label_map(pair.reference)
    if difference := grid_difference(reference, prediction):
        reason = f"field {difference.field} is {difference.second}, that of the reference {difference.first}"
        raise BadInput(pair.prediction, reason, "resample it to the reference")
    known = {0}.union(*labels.values())
    spacing = None if voxels else reference.spacing
    scores = evaluate_labels(prediction.data, reference.data, labels, spacing, tolerance=tolerance)
    return Compared(scores, (predicted - known, true - known))


def _reference_values(pair: Pair) -> set[int]:
    return _label_map(pair.reference)[1]


def _label_map(path: Path) -> tuple[Volume, set[int]]:
    """Read a label map and the values it holds."""
    volume = read_nifti(path)
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
    """Return the values of a label map, slab by slab: sorting a whole scan would take longer than scoring it."""
    low, high = int(data.min()), int(data.max())
    if high - low >= 2**20:
        return {int(value) for value in np.unique(data)}
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    for slab in data:
        seen[slab.astype(np.int64) - low] = True
    return {int(value) + low for value in np.flatnonzero(seen)}


def _by_case(folder: Path) -> dict[str, list[Path]]:
    """Return the NIfTI files of a folder by case; whatever else lies there, hidden files too, is passed over."""
    cases: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if file.name.endswith(ENDINGS) and not file.name.startswith("."):
            cases.setdefault(_case_id(file), []).append(file)
    return cases


def _case_id(file: Path) -> str:
    return printable(file.name.removesuffix(".gz").removesuffix(".nii") or file.name)


def _without_channel(cases: dict[str, list[Path]], others: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """Drop nnU-Net's `_0000` from the names that the other folder does not have so, but without it."""
    named: dict[str, list[Path]] = {}
    for case, files in cases.items():
        short = case.removesuffix("_0000")
        named.setdefault(short if case not in others and short in others else case, []).extend(files)
    return named
