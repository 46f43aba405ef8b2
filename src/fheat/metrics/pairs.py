"""Masks on disk that are compared: files of predictions and references matched by case, and the names of classes.

The names come from the `dataset.json` that nnU-Net and the Medical Segmentation Decathlon put beside masks.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, read_capped
from fheat.system.patterns import files_by_id
from fheat.system.text import printable

ENDINGS: Final = (".nii.gz", ".nii", ".dcm")
_BESIDE: Final = ("_probabilities", "_uncertainty", "_rtstruct")
"""Ends of the names of files that `fheat predict` writes beside a mask."""
_REMEDY: Final = "mend it or name the classes yourself"


@dataclass(frozen=True)
class Pair:
    """The two files of one case."""

    case: str
    prediction: Path
    reference: Path


def match_files(
    prediction: Path, reference: Path, *, only_predicted: bool = False, patterns: Sequence[str] = ()
) -> tuple[list[Pair], dict[str, str], list[str]]:
    """Return the pairs sorted by case, the refused cases with reasons, and notes on files without a partner.

    The case is the file name without `.nii`, `.nii.gz` or `.dcm`, which is a DICOM SEG. nnU-Net's channel suffix
    `_0000` is no part of it where only one of the two files has it. With `patterns`, the names of predictions and of
    references such as `{id}.nii.gz` and `{id}_LGE_seg.nii.gz`, the case is what `{id}` stands for.
    """
    for path in (prediction, reference):
        if not path.exists():
            raise BadInput(path, "does not exist", "check the path")
    if patterns:
        sides = zip((prediction, reference), patterns, strict=False)
        return _paired(prediction, *(_printable(files_by_id(*side)) for side in sides), only_predicted=only_predicted)
    if prediction.is_dir() != reference.is_dir():
        folder, file = (prediction, reference) if prediction.is_dir() else (reference, prediction)
        raise BadInput(folder, f"is a folder and {file} a file", "give two files or two folders")
    if reference.is_file():
        return [Pair(_case_id(reference), prediction, reference)], {}, []
    predicted, true = _by_case(prediction), _by_case(reference)
    predicted, true = _without_channel(predicted, true), _without_channel(true, predicted)
    for folder, found, what in ((prediction, predicted, "predicted"), (reference, true, "reference")):
        if not found:
            raise BadInput(folder, "holds no .nii, .nii.gz or .dcm file", f"give the folder with the {what} masks")
    return _paired(prediction, predicted, true, only_predicted=only_predicted)


def _paired(
    prediction: Path, predicted: dict[str, list[Path]], true: dict[str, list[Path]], *, only_predicted: bool
) -> tuple[list[Pair], dict[str, str], list[str]]:
    """Return what `match_files` does, for files by case."""
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
    lonely = [case for case in sorted(predicted.keys() - true.keys()) if not _belongs_to(case, predicted)]
    extra = [file.name for case in lonely for file in predicted[case]]
    notes = [f"predictions without a reference: {', '.join(extra)}"] if extra else []
    if left_out:
        notes.append(f"{len(left_out)} references without a prediction are left out")
    if not pairs and not refused:
        raise BadInput(prediction, "has no prediction for any of the references", "check the names of the files")
    return pairs, refused, notes


def _belongs_to(case: str, others: dict[str, list[Path]]) -> bool:
    """Return whether a file is what `fheat predict` writes beside the mask of another case."""
    return any(case.removesuffix(end) in others for end in _BESIDE if case.endswith(end))


def _printable(cases: dict[str, list[Path]]) -> dict[str, list[Path]]:
    return {printable(case): files for case, files in cases.items()}


def _by_case(folder: Path) -> dict[str, list[Path]]:
    """Return the NIfTI files and DICOM SEGs of a folder by case; hidden files and files of other kinds are ignored."""
    cases: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if file.name.endswith(ENDINGS) and not file.name.startswith("."):
            cases.setdefault(_case_id(file), []).append(file)
    return cases


def _case_id(file: Path) -> str:
    return printable(file.name.removesuffix(".gz").removesuffix(".nii").removesuffix(".dcm") or file.name)


def _without_channel(cases: dict[str, list[Path]], others: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """Drop nnU-Net's `_0000` from the cases that the other folder has only without it."""
    renamed: dict[str, list[Path]] = {}
    for case, files in cases.items():
        short = case.removesuffix("_0000")
        renamed.setdefault(short if case not in others and short in others else case, []).extend(files)
    return renamed


def declared_labels(reference: Path) -> dict[str, tuple[int, ...]] | None:
    """Return the classes and their label values that a `dataset.json` declares, or None where there is no such file.

    The file lies beside the reference masks or one folder above. Background, the value 0, is not a class. nnU-Net
    writes `"liver": 1`, and regions as `"whole tumour": [1, 2, 3]`; the Decathlon writes `"1": "liver"`.
    """
    real = Path(os.path.realpath(reference))
    folder = real if real.is_dir() else real.parent
    for file in (folder / "dataset.json", folder.parent / "dataset.json"):
        if os.path.lexists(file):
            return _read_labels(file)
    return None


def _read_labels(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        content = json.loads(read_capped(file, TABLE_LIMIT))
    except OSError as error:
        raise BadInput(file, f"cannot be read ({error.strerror})", _REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(file, f"is not JSON ({error})", _REMEDY) from None
    stated = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(stated, dict) or not stated:
        raise BadInput(file, "field labels is missing or empty", _REMEDY)
    labels: dict[str, tuple[int, ...]] = {}
    for key, value in stated.items():
        name, values = _entry(file, key, value)
        if name in labels:
            raise BadInput(file, f"field labels names {name!r} twice", _REMEDY)
        if name == "ignore":
            raise BadInput(
                file, "field labels.ignore: voxels to leave out are not supported", "name the classes yourself"
            )
        labels[name] = values
    classes = {name: values for name, values in labels.items() if values != (0,)}
    if not classes:
        raise BadInput(file, "field labels names only the background", _REMEDY)
    return classes


def _entry(file: Path, key: str, value: Any) -> tuple[str, tuple[int, ...]]:
    """Return the name and the label values of one entry of the field labels."""
    if isinstance(value, str) and value and key.isdecimal():
        return value, (int(key),)
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(item) is int for item in values):
        raise BadInput(file, f"field labels.{key} is {value!r}: expected a value or a list of values", _REMEDY)
    return key, tuple(values)
