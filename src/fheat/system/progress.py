"""Progress: how long work tells how far it is, and how a terminal shows it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeVar

from fheat.system.text import duration

Progress = Callable[[int, int], None]
"""A function called with the number of steps done and their total."""
Watch = Callable[[str], AbstractContextManager[Progress]]
"""A function that opens a context for a part of the work, named in words; the context yields the part's `Progress`."""
Item = TypeVar("Item")
_TAKEN_FOR_TERMINALS: Final = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Environment variables by which rich takes something else for a terminal."""


def silent(done: int, total: int) -> None:
    """Ignore progress: the default where nobody watches."""


@contextmanager
def unwatched(what: str) -> Iterator[Progress]:
    """Show nothing: the `Watch` where nobody watches."""
    yield silent


def counted_steps(items: Sequence[Item], progress: Progress) -> Iterator[Item]:
    """Yield the items; `progress` hears before the first of them how many there are, and after each how many are done.

    >>> list(counted_steps("ab", lambda done, total: print(f"{done} of {total}")))
    0 of 2
    1 of 2
    2 of 2
    ['a', 'b']
    """
    progress(0, len(items))
    for done, item in enumerate(items, start=1):
        yield item
        progress(done, len(items))


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show a bar on standard error while the body runs, and yield the `Progress` that moves it.

    With the number of steps known, it shows how many are done and about how long the others take; until then, and for
    work that has no steps, the time so far. Nothing is shown with `quiet`, without a terminal, or without the package
    rich, which takes a while to import: where it could show nothing, it is not imported.
    """
    if quiet or not _may_be_terminal():
        yield silent
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text
    except ImportError:  # a bar is no reason to stop a long run on a machine without it
        yield silent
        return

    class Amount(ProgressColumn):
        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text(f"{duration(task.elapsed or 0)} so far")
            left = "" if task.time_remaining is None else f", about {duration(task.time_remaining)} left"
            return Text(f"{task.completed:.0f} of {task.total:.0f}{left}")

    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), Amount())
    with Bar(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _may_be_terminal() -> bool:
    """Return whether rich could take standard error for a terminal."""
    return bool((sys.stderr and sys.stderr.isatty()) or any(map(os.environ.get, _TAKEN_FOR_TERMINALS)))
