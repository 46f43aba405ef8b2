"""The engine for one machine: a process per run, several on each GPU, or on the CPU."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from fheat.experiments.engine import Engine, log_of
from fheat.experiments.planned import PlannedRun
from fheat.experiments.worker import Job


@dataclass(frozen=True)
class Place:
    """Where one run at a time is done: a device, and how a process is told to see only that."""

    device: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Working:
    process: "subprocess.Popen[bytes]"
    place: Place
    log: Path
    said_before: int
    """Length of the log before this process wrote to it."""


class Local(Engine):
    """Runs each run in a process of its own, whose output goes to FOLDER/NAME.log.

    Args:
        parallel: number of runs at once on each GPU, or on the CPU; by default one.
        device: `cpu`, `cuda` for all GPUs or `cuda:1` for one of them; by default GPUs where there are any.
    """

    def __init__(self, *, parallel: int | None = None, device: str | None = None) -> None:
        self._free = places(device, parallel or 1)
        self.threads = max(1, torch.get_num_threads() // len(self._free))
        self._waiting: list[tuple[PlannedRun, Path]] = []
        self._working: dict[str, _Working] = {}
        self._left_out: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for working in self._working.values():
            working.process.kill()
        for working in self._working.values():
            working.process.wait()

    def submit(self, run: PlannedRun, folder: Path) -> None:
        """Put a run at the end of the queue."""
        self._waiting.append((run, folder))

    def wait(self, seconds: float) -> Mapping[str, str | None]:
        """Start as many runs as there are places for, and return those that ended."""
        while self._waiting and self._free:
            self._start(*self._waiting.pop(0), self._free.pop(0))
        until = time.monotonic() + seconds
        while True:
            ended = {name for name, working in self._working.items() if working.process.poll() is not None}
            if ended or self._left_out or time.monotonic() > until:
                break
            time.sleep(0.05)
        left_out, self._left_out = self._left_out, {}
        return left_out | {name: self._end(self._working.pop(name)) for name in ended}

    def stop(self) -> None:
        """Ask the processes to save and end."""
        self._left_out = {run.name: "was not begun" for run, _ in self._waiting}
        self._waiting = []
        for working in self._working.values():
            working.process.terminate()

    def _start(self, run: PlannedRun, folder: Path, place: Place) -> None:
        job = Job.of(run, folder, device=place.device, threads=self.threads)
        path = log_of(run.name, folder)
        with open(path, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fheat.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(self.threads), **place.environment},
                start_new_session=True,  # a signal from the terminal is for us, who pass it on once
            )
            self._working[run.name] = _Working(process, place, path, log.tell())
        assert process.stdin is not None
        process.stdin.write(job.model_dump_json().encode())
        process.stdin.close()

    def _end(self, working: _Working) -> str | None:
        """Return why a process failed, None if it did not."""
        self._free.append(working.place)
        code = working.process.returncode
        if code == 0:
            return None
        if code < 0:
            killed = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
            return f"its process was ended by {signal.Signals(-code).name}{killed}"
        with open(working.log, "rb") as file:
            file.seek(working.said_before)
            said = file.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else "its process said nothing"


def places(device: str | None, parallel: int) -> list[Place]:
    """Return the places for runs, `parallel` for each GPU or for the CPU, those of different GPUs by turns.

    Raises `ValueError` for a GPU that this machine does not have.
    """
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type != "cuda":
        return [Place(str(chosen))] * parallel
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = list(map(str, range(torch.cuda.device_count()))) if named is None else named.split(",")
    first, last = (0, torch.cuda.device_count()) if chosen.index is None else (chosen.index, chosen.index + 1)
    wanted = gpus[first:last]
    if not wanted:
        raise ValueError(f"device {str(device)!r} cannot be used: this machine has {torch.cuda.device_count()} GPUs")
    return [Place("cuda", {"CUDA_VISIBLE_DEVICES": gpu.strip()}) for gpu in wanted] * parallel
