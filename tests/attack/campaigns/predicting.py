"""What the campaigns against `fheat predict` and the command line share: a model, scans, forked calls, a result."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a process with threads cannot be forked

import io
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from fheat import Card, create_model, save
from fheat.cli.main import script
from fheat.data.phantom import phantom
from fheat.io import write_nifti
from fheat.models.card import Window
from tests.miniature import register

SIDE = 16


def make_model(folder: Path) -> Path:
    """Save the miniature network for windows of 16 voxels a side, and import what every prediction would import."""
    for module in ("torch._dynamo", "fheat.cli.predict", "fheat.figures.preview"):
        import_module(module)
    torch.set_num_threads(1)
    register()
    torch.manual_seed(0)
    card = Card(
        classes=("background", "chamber"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=(SIDE,) * 3, stride=(SIDE,) * 3),
    )
    return save(create_model("miniature", patch_size=(SIDE,) * 3), folder, card)


def make_scans(folder: Path, names: list[str], distinct: int = 10, side: int = 34) -> Path:
    """Write scans of these names; so many of them are distinct, the others are links to them."""
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        target = folder / f"{name}.nii.gz"
        if number < distinct:
            write_nifti(phantom(number, (side,) * 3).image, target)
        else:
            os.link(folder / f"{names[number % distinct]}.nii.gz", target)
    return folder


@dataclass
class Child:
    """A call of the program in a fork of this process."""

    pid: int
    ready: int
    """A pipe that is readable as soon as the program begins."""

    def wait_until_it_begins(self) -> None:
        """Wait for the program's first line, not for the fork."""
        os.read(self.ready, 1)
        os.close(self.ready)

    def send(self, number: int) -> None:
        """Send a signal; the process is ours until `code` was asked for."""
        os.kill(self.pid, number)

    def code(self) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(words: list[str], streams: Callable[[], None]) -> Child:
    """Start the program with these arguments; `streams` is called in the new process to set its standard streams."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    code = 1
    try:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the program handles it, which is its first step
        streams()
        sys.argv = ["fheat", *words]
        os.write(writing, b"x")
        os.close(writing)
        script()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                code = 120  # as Python ends where it cannot flush
        os._exit(code)


def to_files(out: Path, error: Path, encoding: str = "utf-8") -> None:
    """Let the standard streams of this process be files."""
    for number, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = (open_text(number, encoding) for number in (1, 2))


def open_text(number: int, encoding: str) -> io.TextIOWrapper:
    """Return a standard stream of this number, as Python opens it."""
    return io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), encoding, line_buffering=number == 2)
