"""A run on the terminal: how far it is, the time that is left, its loss, and a bar for how far each gate is open."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fheat.system.text import duration
from fheat.training.trainer import Trainer

SECONDS_BETWEEN_LINES = 15.0
"""Time between two lines about a run without a terminal."""
_FULL_STRENGTH = 0.2
"""Strength at which a bar of a short run has its full length."""
_CHARACTERS = 40
"""Length of a full bar."""


@contextmanager
def gate_screen(what: str, trainer: Trainer) -> Iterator[None]:
    """Show how far a run is, its loss and every gate on standard error while the body runs.

    Without a terminal it is a line now and then. For runs on a CPU: it looks at the run's history, which on a GPU would
    make the host wait.
    """
    screen, began = Console(stderr=True), time.perf_counter()

    def lines() -> Text:
        return gate_lines(what, trainer, time.perf_counter() - began)

    if screen.is_terminal:
        with Live(console=screen, transient=True, refresh_per_second=4, get_renderable=lines):
            yield
        return
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            print(standing(what, trainer, time.perf_counter() - began), file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def standing(what: str, trainer: Trainer, seconds: float) -> str:
    """Return in one line where a run stands that began so many seconds ago."""
    done, total = trainer.done, trainer.settings.schedule.iterations
    if (checked := trainer.validating) is not None:
        return f"{what}: validating {checked[0]} of {checked[1]}, after {done} of {total} iterations"
    left = f", {duration(seconds / done * (total - done))} left" if done else ""
    return f"{what}: training {done} of {total}{left}"


def gate_lines(what: str, trainer: Trainer, seconds: float) -> Text:
    """Return the picture of a run as it stands: a bar for an open gate, a word for a closed one."""
    first = standing(what, trainer, seconds)
    if trainer.done == 0:
        return Text(first)
    row = trainer.step.row(trainer.done)
    loss = trainer.step.method.names[0]
    lines = [f"{first}, {loss} loss {row[loss]:.3f}"]
    lines += gate_bars({site: row[f"D.{site}"] for site in trainer.step.gates}, full=_FULL_STRENGTH)
    return Text("\n".join(lines))


def gate_bars(gates: Mapping[str, float], *, full: float) -> list[str]:
    """Return a line per gate with its strength D: a bar of its full length at `full`, or the word closed."""
    lines = []
    for site, strength in gates.items():
        share = min(strength / full, 1) if isfinite(strength) else 1
        bar = "closed" if strength == 0 else "#" * max(1, round(_CHARACTERS * share))
        lines.append(f"  {site:<6} D {strength:6.4f}  {bar}")
    return lines
