"""A screen for many runs: live on a terminal, else a line when a run begins or ends, and now and then on the way."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fheat.experiments.engine import Failure, RunsWatcher
from fheat.experiments.planned import Outcome
from fheat.system.text import aligned, printable
from fheat.training.observers import Look

SECONDS_BETWEEN_LINES = 60.0
"""Time between two lines about a run without a terminal."""


@contextmanager
def run_screen(count: int) -> Iterator[RunsWatcher]:
    """Show so many runs on standard error while the body runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield _Screen(count, live)


class _Lines(RunsWatcher):
    """Prints lines."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def begins(self, name: str) -> None:
        """Say that a run begins."""
        self._say(name, "begins")

    def stands(self, name: str, look: Look) -> None:
        """Say how far a run is, once a minute."""
        if time.monotonic() - self._said.get(name, 0.0) >= SECONDS_BETWEEN_LINES:
            self._say(name, look.standing())

    def ends(self, name: str, end: Outcome | Failure) -> None:
        """Say how a run ended."""
        self._say(name, ended(end))

    def _say(self, name: str, words: str) -> None:
        self._said[name] = time.monotonic()
        print(printable(f"{name}: {words}"), file=sys.stderr, flush=True)


class _Screen(RunsWatcher):
    """Shows how many runs have ended, and how far each is that has begun."""

    def __init__(self, count: int, live: Live) -> None:
        self._count, self._live = count, live
        self._running: dict[str, str] = {}
        self._done = self._failed = 0
        self._show()

    def begins(self, name: str) -> None:
        """Add a run."""
        self._running[name] = "reading scans"
        self._show()

    def stands(self, name: str, look: Look) -> None:
        """Show how far a run is."""
        self._running[name] = look.standing()
        self._show()

    def ends(self, name: str, end: Outcome | Failure) -> None:
        """Take a run away and count it."""
        self._running.pop(name, None)
        self._done += isinstance(end, Outcome)
        self._failed += isinstance(end, Failure)
        self._live.console.print(Text(printable(f"{name}: {ended(end)}")))
        self._show()

    def _show(self) -> None:
        failed = f", {self._failed} failed" if self._failed else ""
        lines = [f"{self._done} of {self._count} runs done{failed}"]
        if self._running:
            lines.append(aligned(list(self._running.items())))
        self._live.update(Text("\n".join(lines)))


def ended(end: Outcome | Failure) -> str:
    """Return how a run ended, in one line."""
    if isinstance(end, Failure):
        return f"failed: {end.reason}"
    best = "" if end.best is None else f", best validation Dice {end.best:.4f}"
    return f"done in {end.seconds:.0f} s{best}"
