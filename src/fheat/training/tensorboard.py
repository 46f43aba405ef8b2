"""A run as TensorBoard sees it: what goes into `log.jsonl`, as scalars in RUN/tensorboard.

The log is the truth and the events are a view of it. A run that goes on writes them anew from what the log has kept, so
that no iteration is there twice. Needs the package `tensorboard`, the extra of that name.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fheat.system.errors import BadInput

_NAMES = {
    "norm": "train/norm",
    "rate": "train/rate",
    "per_second": "train/iterations_per_second",
    "skipped": "train/skipped",
    "validation": "validation/dice",
}


class TensorBoard:
    """Writes log lines as events; a folder and a file appear with the first line."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "tensorboard"
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            remedy = "install fheat[tensorboard], or set tensorboard to false"
            raise BadInput(self.folder, "needs the package tensorboard", remedy) from None
        self._open: Any = SummaryWriter
        self._writer: Any = None

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write the numbers of log lines, each at its iteration, and flush them."""
        for line in lines:
            for tag, value in scalars(line):
                if self._writer is None:
                    self._writer = self._open(log_dir=str(self.folder))
                self._writer.add_scalar(tag, value, line["iteration"])
        if self._writer is not None:
            self._writer.flush()

    def replace(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Forget the events that are there and write those of the lines instead."""
        for stale in self.folder.glob("events.out.tfevents.*"):
            stale.unlink()
        self.add(lines)


def scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield tag and value of every number of a log line but its iteration.

    `D.enc1` becomes D/enc1 and `alpha.enc1` alpha/enc1, `cases` cases/ID, `probe` pairing/enc1 and so on; what has no
    other place is a loss.
    """
    for name, value in line.items():
        if name == "probe":
            for site, measured in value.items():
                yield from ((f"{what}/{site}", number) for what, number in measured.items() if number is not None)
        elif isinstance(value, Mapping):
            yield from ((f"{name}/{key}", number) for key, number in value.items())
        elif name != "iteration":
            yield _NAMES.get(name) or (name.replace(".", "/", 1) if "." in name else f"loss/{name}"), float(value)
