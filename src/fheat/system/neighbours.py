"""How many processors other programs keep busy, as Linux counts it; elsewhere it is not known."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7
"""Columns of a processor in /proc/stat that are time in which it did something for somebody."""
_TIMES = slice(11, 15)
"""Columns of a process in /proc/PID/stat, behind its name: its own time and that of children it has waited for."""
_SHORTEST = 0.25
"""Seconds that are counted at least, as processors count in hundredths."""
_LONGEST = 60.0
"""Seconds after which an earlier count says nothing about now."""
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class _Count(NamedTuple):
    """What was counted at one moment, in seconds, by which process on which processors."""

    process: int
    processors: frozenset[int]
    clock: float
    busy: float
    """Time of all processors that this process is bound to."""
    own: float
    """Time of this process and of all that it started."""


class Neighbours:
    """The other programs on the processors that this process is bound to.

    Programs that gave way to others by `nice` do not count, unless this one has done so, too. Nor do processes that
    this one has started. `proc` is where the system tells what it counts.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last = self._count()
        self._busy = 0.0
        self._lock = Lock()

    def busy(self) -> float:
        """Return the mean number of processors that they kept busy since the last call; 0 where it is not known.

        Soon after a call the answer is that of before. It is not known after a minute without a call, in a
        process that was forked off meanwhile or bound to other processors, or where a child left children behind.
        """
        with self._lock:
            before, now = self._last, self._count()
            if before is None or now is None:
                return 0.0
            passed, own = now.clock - before.clock, now.own - before.own
            if passed >= _SHORTEST:
                self._last = now
                known = passed <= _LONGEST and own >= 0 and now[:2] == before[:2]
                self._busy = max((now.busy - before.busy - own) / passed, 0.0) if known else 0.0
            return self._busy

    def _count(self) -> _Count | None:
        try:
            processors = frozenset(os.sched_getaffinity(0))
            ours = {f"cpu{number}" for number in processors}
            lines = [line.split() for line in (self._proc / "stat").read_text().splitlines()]
            times = [[int(value) for value in values] for name, *values in lines if name in ours]
            columns = [_USER, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL, *([_NICE] if os.nice(0) > 0 else [])]
            busy = sum(one[column] for one in times for column in columns) / _TICKS
        except (AttributeError, OSError, ValueError, IndexError):
            return None
        children = os.times().children_user + os.times().children_system
        started = sum(map(self._time_of, self._descendants(os.getpid())))
        return _Count(os.getpid(), processors, time.monotonic(), busy, time.process_time() + children + started)

    def _descendants(self, process: int) -> Iterator[int]:
        try:
            tasks = os.listdir(self._proc / str(process) / "task")
        except OSError:  # that process has ended
            return
        for task in tasks:
            try:
                children = (self._proc / str(process) / "task" / task / "children").read_text().split()
            except OSError:  # that thread has ended
                continue
            for child in map(int, children):
                yield child
                yield from self._descendants(child)

    def _time_of(self, process: int) -> float:
        try:
            behind_name = (self._proc / str(process) / "stat").read_text().rpartition(")")[2].split()
            return sum(map(int, behind_name[_TIMES])) / _TICKS
        except (OSError, ValueError):  # that process has ended
            return 0.0
