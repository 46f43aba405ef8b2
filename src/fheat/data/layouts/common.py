"""Parts that layouts share: descriptions in JSON, lists of images and labels, paths that stay inside the dataset."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fheat.data.case import Case, Problem
from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, read_capped

ENDINGS: Final = (".nii.gz", ".nii", ".nrrd", ".h5")
"""Endings of image files."""


class Description(BaseModel):
    """Base class of descriptions in JSON: unknown fields are ignored, known fields must have the right type."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Described = TypeVar("Described", bound=Description)


class Entry(Description):
    """One case of a list `{"image": ..., "label": ...}`, as in MSD and MONAI; cross-validation folds are ignored."""

    image: str | tuple[str, ...] = Field(min_length=1)
    label: str | None = None
    unlabelled: bool = False
    case: str | None = Field(default=None, pattern=r"\A[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,199}\z")
    """Id of the case, which names files: it has no slash and begins with no dot. By default the image names the case.
    """

    @property
    def images(self) -> tuple[str, ...]:
        """Paths of the channels, or of the only file."""
        return (self.image,) if isinstance(self.image, str) else self.image


def load_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise `BadInput`."""
    try:
        return json.loads(read_capped(path, TABLE_LIMIT))
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(path, f"is not JSON ({error})", "correct it or export it again") from None


def peek_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON object, or an empty mapping if the file is missing or holds anything else.

    Raises `BadInput` for what is there and is no file: a layout is not guessed past a named pipe.
    """
    try:
        content = load_json(path)
    except BadInput:
        if os.path.lexists(path) and not path.is_file():
            raise
        return {}
    return content if isinstance(content, dict) else {}


def describe(kind: type[Described], path: Path, content: Any) -> Described:
    """Return the checked description, or raise `BadInput` that names the first wrong field."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "(top)"
        got = "" if first["type"] == "missing" else f", got {str(first['input'])[:80]!r}"
        remedy = "correct the field, see docs/reference/data.md"
        raise BadInput(path, f"field {field}: {first['msg']}{got}", remedy) from None


def inside(root: Path, text: str, *, source: Path, field: str, absolute: bool = False) -> Path:
    """Return a path given in a description, or raise `BadInput` if it leaves `root`; symbolic links are followed.

    With `absolute` an absolute path is accepted too.
    """
    if os.path.isabs(text):
        if absolute:
            return Path(text)
        raise BadInput(source, f"field {field} is the absolute path {text!r}", "write it relative to the dataset")
    clean = os.path.normpath(text)
    if clean == os.curdir:
        raise BadInput(source, f"field {field} is {text!r}, which names no file", "name the file")
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
    """Return the images of a folder by stem, sorted, without hidden files; with `series` folders (DICOM) count too."""
    if not folder.is_dir():
        return {}
    paths = [
        path
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".") and (path.name.endswith(endings) or (series and path.is_dir()))
    ]
    images: dict[str, Path] = {}
    for path in paths:
        other = images.setdefault(stem(path), path)
        if other is not path:
            raise BadInput(path, f"and {other.name} are two files of the case {stem(path)!r}", "remove one of them")
    return images


def by_channel(files: dict[str, Path]) -> dict[str, tuple[Path, ...]]:
    """Group `<id>_0000`, `<id>_0001`, ... as channels of `<id>`; a file without a matching `<id>_0000` is a case."""
    cases: dict[str, list[Path]] = {}
    for name, path in files.items():
        match = re.fullmatch(r"(.+)_\d{4}", name)
        case = match[1] if match and f"{match[1]}_0000" in files else name
        cases.setdefault(case, []).append(path)
    return {case: tuple(paths) for case, paths in cases.items()}


def labels_without_image(labels: dict[str, Path], images: dict[str, tuple[Path, ...]]) -> tuple[Problem, ...]:
    """Return a problem for each label that belongs to no image."""
    return tuple(
        Problem(name, path, "image", "is a label without an image", "add the image or remove the label")
        for name, path in labels.items()
        if name not in images
    )


def count_mismatch(source: Path, field: str, stated: int | None, cases: tuple[Case, ...]) -> tuple[Problem, ...]:
    """Return a warning if a description states another number of cases than there are; None states nothing."""
    if stated is None or stated == len(cases):
        return ()
    reason = f"says {stated} and there are {len(cases)}"
    return (Problem("", source, field, reason, "look for missing cases or correct the number", "warning"),)


def cases_of(
    entries: Sequence[Entry | str], *, split: str, source: Path, field: str, unlabelled: bool = False, absolute: bool
) -> tuple[Case, ...]:
    """Return the cases of one list, named by their image files. An entry that is only a path has no label.

    With `unlabelled` every entry without a label is declared unlabelled. `absolute` allows absolute paths.
    """
    cases = []
    for number, entry in enumerate(entries):
        where = f"{field}.{number}"
        if entry == "":
            raise BadInput(source, f"field {where} is empty", "name the image")
        entry = Entry(image=entry) if isinstance(entry, str) else entry
        images = tuple(
            inside(source.parent, text, source=source, field=f"{where}.image", absolute=absolute)
            for text in entry.images
        )
        label = None
        if entry.label is not None and not entry.unlabelled:
            label = inside(source.parent, entry.label, source=source, field=f"{where}.label", absolute=absolute)
        declared = entry.unlabelled or (unlabelled and label is None)
        cases.append(Case(entry.case or _name(images), images, label=label, unlabelled=declared, split=split))
    return tuple(cases)


def with_distinct_names(root: Path, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases, all named by their paths if two images share a file name (`sub-1/t1.nii`, `sub-2/t1.nii`)."""
    if len({case.id for case in cases}) == len({case.images for case in cases}):
        return tuple(cases)
    return tuple(replace(case, id="_".join(_below(root, case.images[0]))) for case in cases)


def _name(images: tuple[Path, ...]) -> str:
    name = stem(images[0])
    return name.removesuffix("_0000") if len(images) > 1 else name


def _below(root: Path, image: Path) -> tuple[str, ...]:
    folder = image.parent.relative_to(root) if image.is_relative_to(root) else image.parent.relative_to(image.anchor)
    return (*folder.parts, stem(image))
