"""What layouts share: descriptions in JSON, paths that stay inside, files by the name of their case."""

import json
import os
import re
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fheat.data.case import Case, Problem
from fheat.system.errors import BadInput

ENDINGS: Final = (".nii.gz", ".nii", ".nrrd", ".h5")
_JSON_LIMIT: Final = 64 * 2**20


class Description(BaseModel):
    """Base of the foreign formats: what is not known is ignored, what is known must fit."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Described = TypeVar("Described", bound=Description)


def load_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise `BadInput`."""
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise BadInput(path, f"is larger than {_JSON_LIMIT:,} bytes", "check that it is the right file")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(path, f"is not JSON ({error})", "mend it or export it again") from None


def peek_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON object, empty where the file is missing or anything else."""
    try:
        content = load_json(path)
    except BadInput:
        return {}
    return content if isinstance(content, dict) else {}


def describe(kind: type[Described], path: Path, content: Any) -> Described:
    """Return the checked description, or raise `BadInput` naming the first field that does not fit."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "(top)"
        got = "" if first["type"] == "missing" else f", got {str(first['input'])[:80]!r}"
        raise BadInput(path, f"field {place}: {first['msg']}{got}", "mend the field, see docs/data.md") from None


def inside(root: Path, text: str, *, source: Path, field: str, absolute: bool = False) -> Path:
    """Return the path written in a description. Relative ones stay below `root`; symbolic links there are followed."""
    if os.path.isabs(text):
        if absolute:
            return Path(text)
        raise BadInput(source, f"field {field} is the absolute path {text!r}", "write it relative to the dataset")
    clean = os.path.normpath(text)
    if clean == ".." or clean.startswith(".." + os.sep):
        raise BadInput(source, f"field {field} is {text!r}, which leaves the dataset", "keep the files inside")
    return root / clean


def stem(path: Path) -> str:
    """Return the file name without the ending of an image: `a.b.nii.gz` gives `a.b`."""
    for ending in ENDINGS:
        if path.name.endswith(ending):
            return path.name.removesuffix(ending)
    return path.name


def image_files(folder: Path, endings: tuple[str, ...] = ENDINGS, *, series: bool = False) -> dict[str, Path]:
    """Return the images of a folder by stem, sorted; hidden files are not images. `series`: folders count (DICOM)."""
    if not folder.is_dir():
        return {}
    found = [
        path
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".") and (path.name.endswith(endings) or (series and path.is_dir()))
    ]
    images: dict[str, Path] = {}
    for path in found:
        other = images.setdefault(stem(path), path)
        if other is not path:
            raise BadInput(path, f"and {other.name} are two files of the case {stem(path)!r}", "remove one of them")
    return images


def by_channel(files: dict[str, Path]) -> dict[str, tuple[Path, ...]]:
    """Group `<id>_0000`, `<id>_0001`, ... into the channels of `<id>`; an id without `<id>_0000` is its own case."""
    cases: dict[str, list[Path]] = {}
    for name, path in files.items():
        match = re.fullmatch(r"(.+)_\d{4}", name)
        case = match[1] if match and f"{match[1]}_0000" in files else name
        cases.setdefault(case, []).append(path)
    return {case: tuple(paths) for case, paths in cases.items()}


def labels_without_image(labels: dict[str, Path], images: dict[str, tuple[Path, ...]]) -> tuple[Problem, ...]:
    """Report each label that belongs to no image."""
    return tuple(
        Problem(name, path, "image", "is a label without an image", "add the image or remove the label")
        for name, path in labels.items()
        if name not in images
    )


def count_mismatch(source: Path, field: str, stated: int | None, cases: tuple[Case, ...]) -> tuple[Problem, ...]:
    """Warn where a description states another number of cases than it has; None states nothing."""
    if stated is None or stated == len(cases):
        return ()
    reason = f"says {stated} and there are {len(cases)}"
    return (Problem("", source, field, reason, "look for missing cases or correct the number", "warning"),)
