"""Gates closing while one watches: a line per gate, redrawn a few times a second while a run trains."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fheat.engine.loop import Run

_FULL = 0.2
"""Strength at which a bar has its full length."""
_LENGTH = 40


@contextmanager
def gate_screen(what: str, job: Run) -> Iterator[None]:
    """Show iteration, loss and every gate of a run on standard error while the body runs; quiet without a terminal.

    For runs on a CPU: it looks at the run's history, which on a GPU would make the host wait.
    """
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with Live(console=screen, transient=True, refresh_per_second=4, get_renderable=lambda: gate_lines(what, job)):
        yield


def gate_lines(what: str, job: Run) -> Text:
    """Return the picture of a run as it stands: a bar for an open gate, a word for a closed one."""
    done, total = job.done, job.config.iterations
    if done == 0:
        return Text(f"{what}: first iteration of {total}")
    row = dict(zip(job.step.columns, job.step.history[done - 1].tolist(), strict=True))
    loss = job.step.method.names[0]
    lines = [f"{what}: iteration {done} of {total}, {loss} loss {row[loss]:.3f}"]
    for site in job.step.gates:
        strength = row[f"D.{site}"]
        bar = "#" * max(1, round(_LENGTH * min(strength / _FULL, 1)))
        lines.append(f"  {site:<6} D {strength:6.4f}  {'closed' if strength == 0 else bar}")
    return Text("\n".join(lines))
