"""Names of classes, from the `dataset.json` that nnU-Net and the Medical Segmentation Decathlon put beside masks."""

import json
import os
from pathlib import Path
from typing import Any, Final

from fheat.errors import BadInput

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
