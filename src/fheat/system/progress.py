"""Progress: how long work tells how far it is, and how a terminal shows it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""A function called with the number of steps done and their total."""


def silent(done: int, total: int) -> None:
    """Ignore progress: the default where nobody watches."""


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show a bar on standard error while the body runs, and yield the `Progress` that moves it.

    Nothing is shown with `quiet`, without a terminal, or without the package rich.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:  # a bar is no reason to stop a long run on a machine without it
        yield silent
        return
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
