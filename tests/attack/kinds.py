"""What an attack on one kind of file consists of: a drawn recipe, the files made of it, the call, and the verdict.

Chance is used in one place, `Kind.draw`, which returns a recipe: plain data that fits into a line of JSON. Everything
else follows from the recipe, so that a case can be stored in the corpus and repeated after the drawing has changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

Recipe = dict[str, Any]
"""JSON data: `base` says which healthy file is taken, `steps` lists the mutations, each `[name, argument, ...]`."""


@dataclass(frozen=True)
class Verdict:
    """What a reader must do with a file: read it as `value`, refuse it because of `reason`, or do one of both.

    Without a reason the file is healthy and must be read. With a reason it must be refused, unless `optional`: a
    reader may then refuse it, but if it reads the file, the content must be `value` (None: any content).
    """

    value: Any = None
    reason: str = ""
    optional: bool = False


def healthy(value: Any) -> Verdict:
    """Return the verdict on a file that must be read as `value`."""
    return Verdict(value=value)


def contradiction(reason: str) -> Verdict:
    """Return the verdict on a file that must be refused."""
    return Verdict(reason=reason)


def doubtful(reason: str, value: Any = None) -> Verdict:
    """Return the verdict on a file that may be refused, but not be read as anything but `value`."""
    return Verdict(value=value, reason=reason, optional=True)


@dataclass(frozen=True)
class Made:
    """The files of a case by path below its folder, and the verdict on them."""

    files: dict[str, bytes]
    verdict: Verdict

    @property
    def trusted(self) -> bool:
        """Whether the files are parsed in the calling process; half of all cases are, the others in a confined one."""
        return sum(map(sum, self.files.values())) % 2 == 0


@dataclass(frozen=True)
class Kind:
    """One kind of file under attack."""

    name: str
    draw: Callable[[Random], Recipe]
    make: Callable[[Recipe, Path], Made]
    """Returns the files; the folder is the one in which they will lie."""
    read: Callable[[Path], Any]
    """Calls the public function that opens the files in the folder."""
    agrees: Callable[[Any, Any], bool] = lambda found, expected: bool(found == expected)
    """Compares what was read with the value of the verdict."""
    weight: int = 2
    """Share of a campaign's cases, relative to the other kinds."""

    def label(self, recipe: Recipe) -> str:
        """Return the name of the first mutation, under which the case is counted."""
        return str(recipe["steps"][0][0]) if recipe["steps"] else "none"
