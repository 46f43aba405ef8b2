"""A run on the terminal: iteration, loss, and a bar for how far each gate is open."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fheat.training.trainer import Trainer

_FULL_STRENGTH = 0.2
"""Strength at which a bar of a short run has its full length."""
_CHARACTERS = 40
"""Length of a full bar."""


@contextmanager
def gate_screen(what: str, trainer: Trainer) -> Iterator[None]:
    """Show iteration, loss and every gate of a run on standard error while the body runs; quiet without a terminal.

    For runs on a CPU: it looks at the run's history, which on a GPU would make the host wait.
    """
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with Live(console=screen, transient=True, refresh_per_second=4, get_renderable=lambda: gate_lines(what, trainer)):
        yield


def gate_lines(what: str, trainer: Trainer) -> Text:
    """Return the picture of a run as it stands: a bar for an open gate, a word for a closed one."""
    done, total = trainer.done, trainer.settings.schedule.iterations
    if done == 0:
        return Text(f"{what}: first iteration of {total}")
    row = trainer.step.row(done)
    loss = trainer.step.method.names[0]
    lines = [f"{what}: iteration {done} of {total}, {loss} loss {row[loss]:.3f}"]
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
