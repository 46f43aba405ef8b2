"""A run as TensorBoard sees it: what goes into `log.jsonl`, as scalars in RUN/tensorboard.

The log is the truth and the events are a view of it. A run that goes on writes them anew from what the log has kept, so
that no iteration is there twice. Needs the package `tensorboard`, the extra of that name.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fheat.system.errors import BadInput
from fheat.training.trainer import LogLine, Observer

_NAMES = {
    "norm": "train/norm",
    "rate": "train/rate",
    "per_second": "train/iterations_per_second",
    "skipped": "train/skipped",
    "validation": "validation/dice",
}


class TensorBoard(Observer):
    """Writes the lines of the log as events; a folder and a file appear with the first line.

    Needs the package `tensorboard`: `check` raises `BadInput` where it is missing.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "tensorboard"
        self._writer: Any = None

    def check(self) -> None:
        """Raise `BadInput` where events cannot be written."""
        try:
            import torch.utils.tensorboard  # noqa: F401 - only whether it is there
        except ImportError:
            remedy = "install fheat[tensorboard], or set output.tensorboard to false"
            raise BadInput(self.folder, "needs the package tensorboard", remedy) from None

    def record(self, lines: Sequence[LogLine]) -> None:
        """Write the numbers of log lines, each at its iteration, and flush them."""
        for line in lines:
            for tag, value in scalars(line):
                if self._writer is None:
                    from torch.utils.tensorboard import SummaryWriter

                    self._writer = SummaryWriter(log_dir=str(self.folder))
                self._writer.add_scalar(tag, value, line["iteration"])
        if self._writer is not None:
            self._writer.flush()

    def replace(self, lines: Sequence[LogLine]) -> None:
        """Forget the events that are there and write those of the lines instead."""
        for stale in self.folder.glob("events.out.tfevents.*"):
            stale.unlink()
        self.record(lines)


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
        elif name not in ("iteration", "closed"):
            yield _NAMES.get(name) or (name.replace(".", "/", 1) if "." in name else f"loss/{name}"), float(value)
