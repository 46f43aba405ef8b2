"""Plug-ins: what separately installed packages add through entry points.

A package adds, say, a network with two lines in its `pyproject.toml`; nothing of this package changes:

    [project.entry-points."fheat.networks"]
    my_net = "my_package.my_module:build"

A plug-in that is broken never breaks the rest: it is skipped with one warning that names its distribution, and the
reason stays available for whoever asks for it by name.
"""

import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, distributions
from threading import RLock
from typing import Any


def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points that installed distributions declare in a group, by name, in alphabetical order.

    Nothing is imported. Where two distributions declare the same name, the one whose own name comes first in the
    alphabet has it, and a warning names the other; so does a warning where an `entry_points.txt` cannot be read.
    """
    entries, problems = _scan(group)
    _warn(problems)
    return entries


class PluginGroup:
    """The plug-ins of one entry point group, imported on first need, once per process.

    `register(name, value)` is called with what each entry point names, and raises `TypeError` or `ValueError` if that
    cannot be used.

    >>> group = PluginGroup("fheat.none_such", print)
    >>> group.load()
    >>> group.refused
    {}
    """

    def __init__(self, group: str, register: Callable[[str, Any], None]) -> None:
        self._group = group
        self._register = register
        self._loaded = False
        self._lock = RLock()  # a plug-in may ask for the registry while it is imported
        self.registered: dict[str, str] = {}
        """The distribution of each plug-in that was registered, by name."""
        self.refused: dict[str, str] = {}
        """For each plug-in that cannot be used, by name: its distribution and the reason, in one line."""

    def load(self) -> None:
        """Import and register every plug-in of the group; the second call does nothing."""
        with self._lock:
            if self._loaded:
                return
            self._loaded = True
            entries, problems = _scan(self._group)
            for name, entry in entries.items():
                try:
                    self._register(name, entry.load())
                    self.registered[name] = _distribution(entry)
                except (Exception, SystemExit) as error:  # foreign code may raise anything
                    self.refused[name] = f"{_distribution(entry)}: {_one_line(error)}"
                    problems.append(f"{name!r} of distribution {self.refused[name]}")
        _warn(problems)


def _scan(group: str) -> tuple[dict[str, EntryPoint], list[str]]:
    """Return the entry points of a group by name, and one line for each that cannot be had."""
    declared: list[EntryPoint] = []
    problems: list[str] = []
    for distribution in distributions():
        try:
            if f"[{group}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            declared += [entry for entry in distribution.entry_points if entry.group == group]
        except Exception as error:  # its parser has no error of its own
            problems.append(f"of distribution {distribution.name}: entry_points.txt is unreadable, {_one_line(error)}")
    entries: dict[str, EntryPoint] = {}
    for entry in sorted(declared, key=lambda entry: (entry.name, _distribution(entry))):
        first = entries.setdefault(entry.name, entry)
        if _distribution(first) != _distribution(entry):  # one distribution may lie twice on the path: the first counts
            taken = f"{_distribution(first)} has that name already"
            problems.append(f"{entry.name!r} of distribution {_distribution(entry)}: {taken}")
    return entries, problems


def _distribution(entry: EntryPoint) -> str:
    return str(entry.dist.name) if entry.dist is not None else "unknown"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def _warn(problems: list[str]) -> None:
    for problem in problems:
        warnings.warn(f"the plug-in {problem}; it is skipped", RuntimeWarning, stacklevel=4)
