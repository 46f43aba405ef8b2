"""Names of files as a pattern with placeholders: `{id}_LGE.nii.gz`, or `{id}/seg/{any}.nii.gz`; no regular expressions.

`{id}` stands for the name of a case, the same wherever it is repeated, and `{any}` for any text. Neither is empty, and
neither reaches over a `/`, which separates folders.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fheat.system.errors import BadInput

_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
_MOST_SHOWN: Final = 3
"""Number of names that an error shows."""


def check_pattern(pattern: str) -> str:
    """Return the pattern, or raise `ValueError` if it has no `{id}`, other placeholders, or leaves the folder."""
    unknown = [found for found in _PLACEHOLDER.findall(pattern) if found not in ("{id}", "{any}")]
    if unknown:
        raise ValueError(f"pattern {pattern!r} has the placeholder {unknown[0]}: use {{id}} and {{any}}")
    if "{id}" not in pattern:
        raise ValueError(f"pattern {pattern!r} has no {{id}}, which stands for the name of a case")
    if pattern.startswith("/") or {"", ".", ".."} & set(pattern.split("/")):
        raise ValueError(f"pattern {pattern!r} is no name below a folder: leave out the folder itself")
    return pattern


def files_by_id(folder: Path, pattern: str) -> dict[str, list[Path]]:
    """Return the files below a folder whose names fit the pattern, by what `{id}` stands for, both sorted.

    Hidden files are left out unless the pattern begins with a dot. Raises `BadInput` with some names that are there if
    none fits. Where `{id}` could be longer or shorter, it is as short as possible.
    """
    if not folder.is_dir():
        raise BadInput(folder, "is no folder", "give the folder in which the pattern is looked for")
    parts = check_pattern(pattern).split("/")
    whole = re.compile(_translated(pattern))
    found: dict[str, list[Path]] = {}
    for file in _at_depth(folder, [re.compile(_translated(part)) for part in parts]):
        if fit := whole.fullmatch(file.relative_to(folder).as_posix()):
            found.setdefault(fit["id"], []).append(file)
    if not found:
        there = [entry.name for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
        names = ", ".join(there[:_MOST_SHOWN]) + (", ..." if len(there) > _MOST_SHOWN else "")
        raise BadInput(folder, f"has no file that fits {pattern!r}", f"it holds {names or 'nothing'}")
    return {case: found[case] for case in sorted(found)}


def _translated(pattern: str) -> str:
    """Return the pattern as a regular expression; the first `{id}` is a group that the others repeat."""
    pieces, begin, named = [], 0, False
    for hit in _PLACEHOLDER.finditer(pattern):
        pieces.append(re.escape(pattern[begin : hit.start()]))
        pieces.append("[^/]+?" if hit[0] == "{any}" else "(?P=id)" if named else "(?P<id>[^/]+?)")
        named, begin = named or hit[0] == "{id}", hit.end()
    return "".join([*pieces, re.escape(pattern[begin:])])


def _at_depth(folder: Path, parts: list[re.Pattern[str]]) -> Iterator[Path]:
    """Yield the files that many folders deep whose folders and names each fit their part."""
    part, *deeper = parts
    for entry in sorted(folder.iterdir()):
        if part.fullmatch(entry.name) and (not entry.name.startswith(".") or part.pattern.startswith(r"\.")):
            if deeper and entry.is_dir():
                yield from _at_depth(entry, deeper)
            elif not deeper and entry.is_file():
                yield entry
