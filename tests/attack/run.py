"""The campaign: `python -m tests.attack N [--seed S] [--kinds NAME ...] [--each] [--store FILE]`.

N cases are shared among the kinds of files (with `--each`, every kind gets N). Workers run them in batches; one that
dies or hangs is replaced, and the case in its hands is the failure. The table counts what happened by kind and class;
the exit status is 1 if there was any failure.
"""

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fheat.system.processors import processors
from tests.attack.kinds import Kind
from tests.attack.mutators import NAMES, kinds
from tests.attack.worker import CLASSES, FAILURES, recipe_of, work

BATCH = 400
"""Cases of one worker; a new one starts from a clean state."""
SECONDS = 5.0
"""Longest time of a case on a machine that is not crowded."""
SHOWN = 40
"""Failures that are printed with their recipes."""


@dataclass
class Tally:
    """What a campaign has counted so far."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of cases by kind and class."""
    mutations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of cases by kind and first mutation."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0
    peak: int = 0

    def add(self, kind: Kind, seed: int, line: Sequence[Any]) -> None:
        """Count one case."""
        index, outcome, details, label, seconds, peak = line
        if index is None:  # the last word of a worker: what the processes that it had started held
            self.peak = max(self.peak, peak)
            return
        self.outcomes[kind.name, outcome] += 1
        self.mutations[kind.name, label] += 1
        self.slowest, self.peak = max(self.slowest, seconds), max(self.peak, peak)
        if outcome in FAILURES:
            recipe = recipe_of(kind, seed, index)
            self.failures.append({"kind": kind.name, "class": outcome, "details": details, "index": index, **recipe})


class Worker:
    """A forked process with a range of cases of one kind."""

    def __init__(self, kind: Kind, seed: int, first: int, last: int) -> None:
        self.kind, self.seed, self.next, self.last = kind, seed, first, last
        fast = Path("/dev/shm")
        self.scratch = Path(tempfile.mkdtemp(prefix="attack-", dir=fast if os.access(fast, os.W_OK) else None))
        self.stream, report = os.pipe()
        self.heard = time.monotonic()
        self._text = b""
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _enter(kind, seed, first, last, self.scratch, report)
        os.close(report)

    def lines(self) -> list[list[Any]] | None:
        """Return the cases reported since the last call, or None at the end of the process."""
        part = os.read(self.stream, 2**16)
        self.heard = time.monotonic()
        *complete, self._text = (self._text + part).split(b"\n")
        found = [json.loads(text) for text in complete]
        self.next += sum(line[0] is not None for line in found)
        return found if part else None

    def end(self) -> int:
        """Wait for the process, which has closed its pipe or was killed; return its status."""
        os.close(self.stream)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        shutil.rmtree(self.scratch, ignore_errors=True)
        return status


def _enter(kind: Kind, seed: int, first: int, last: int, scratch: Path, report: int) -> None:
    """Run the cases in a process group of its own, so that whatever they start ends with them."""
    status = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a worker does not outlive the campaign
        work(kind, seed, first, last, scratch, report)
        status = 0
    finally:
        os._exit(status)


def shares(kinds: Sequence[Kind], cases: int, each: bool) -> dict[str, int]:
    """Return the number of cases of every kind, by its name."""
    if each:
        return {kind.name: cases for kind in kinds}
    total = sum(kind.weight for kind in kinds)
    counts = {kind.name: cases * kind.weight // total for kind in kinds}
    counts[kinds[0].name] += cases - sum(counts.values())
    return counts


def attack(kinds: Sequence[Kind], counts: dict[str, int], seed: int, *, workers: int = 2) -> Tally:
    """Run all cases and return what was counted."""
    tally = Tally()
    waiting = [
        (kind, first, min(first + BATCH, counts[kind.name]))
        for kind in kinds
        for first in range(0, counts[kind.name], BATCH)
    ]
    running: dict[int, Worker] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            kind, first, last = waiting.pop(0)
            worker = Worker(kind, seed, first, last)
            running[worker.stream] = worker
        for stream in select.select(list(running), [], [], 0.5)[0]:
            lines = running[stream].lines()
            for line in lines or []:
                tally.add(running[stream].kind, seed, line)
            if lines is None:
                _finish(running.pop(stream), "killed", tally, waiting)
        for stream, worker in list(running.items()):
            if time.monotonic() - worker.heard > SECONDS and time.monotonic() - worker.heard > SECONDS * crowding():
                os.killpg(worker.pid, signal.SIGKILL)
                _finish(running.pop(stream), "hang", tally, waiting)
    return tally


def _finish(worker: Worker, failure: str, tally: Tally, waiting: list[tuple[Kind, int, int]]) -> None:
    """Take leave of a worker; the case in which it ended early is a failure, and the rest goes to another worker."""
    status = worker.end()
    if worker.next == worker.last:
        return
    label = worker.kind.label(recipe_of(worker.kind, worker.seed, worker.next))
    tally.add(worker.kind, worker.seed, [worker.next, failure, f"status {status}", label, 0.0, 0])
    if worker.next + 1 < worker.last:
        waiting.insert(0, (worker.kind, worker.next + 1, worker.last))


def crowding() -> float:
    """Return how many times longer than its own processor time a short computation takes here now; at least 1."""
    wall, own = time.perf_counter(), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    return max(1.0, (time.perf_counter() - wall) / (time.process_time() - own))


def table(tally: Tally, kinds: Sequence[Kind]) -> str:
    """Return the counts by kind and class as lines of text; classes that never occurred have no column but a line."""
    seen = [name for name in CLASSES if any(tally.outcomes[kind.name, name] for kind in kinds)]
    rows = [["kind", "cases", *seen]]
    for kind in kinds:
        counts = [tally.outcomes[kind.name, name] for name in seen]
        rows.append([kind.name, f"{sum(counts):,}", *(f"{count:,}" for count in counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    absent = [name for name in FAILURES if name not in seen]
    return f"{text}\n0 cases each: {', '.join(absent)}" if absent else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=int, help="number of cases")
    parser.add_argument("--each", action="store_true", help="give every kind this number of cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=list(NAMES), metavar="KIND", help=", ".join(NAMES))
    parser.add_argument("--workers", type=int, default=processors())
    parser.add_argument("--store", type=Path, help="write the counts as a stored result")
    parser.add_argument("--failures", type=Path, help="append every failure with its recipe, a line of JSON each")
    options = parser.parse_args(arguments)
    chosen = kinds(options.kinds or ())
    began = time.monotonic()
    tally = attack(chosen, shares(chosen, options.cases, options.each), options.seed, workers=options.workers)
    seconds = time.monotonic() - began
    print(table(tally, chosen))
    peak = f"peak memory of a process {tally.peak / 2**20:,.0f} MiB"
    print(f"{seconds:.0f} s, slowest case {tally.slowest:.2f} s, {peak}")
    for failure in tally.failures[:SHOWN]:
        print(json.dumps(failure))
    if options.failures:
        with open(options.failures, "a") as file:
            file.writelines(json.dumps(failure) + "\n" for failure in tally.failures)
    if options.store:
        from tests.attack.store import store

        store(tally, chosen, options, seconds)
    return 1 if tally.failures else 0
