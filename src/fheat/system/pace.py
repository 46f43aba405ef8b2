"""How many threads torch uses on a CPU that other programs use, too.

Torch splits every operation among its threads, which wait for each other at its end: for all n of them as long as the
slowest takes. A thread that shares its processor gets half of it. Where other programs leave m < n processors,
operations therefore take at least

    work x 2 / n with all threads        work / m with those that have a processor of their own

and in truth the former take longer, since threads that wait take turns with the other programs. So m threads run, and
only where n > 2 m, time decides between them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf
from typing import Final

import torch

from fheat.system.neighbours import Neighbours
from fheat.system.processors import processors
from fheat.system.threads import limited_threads, usual_threads

LOOK: Final = 5.0
"""Seconds from one look at the neighbours to the next."""
WARM_UP: Final = 1
TRIED: Final = 2
"""Units of a trial that are not measured, as libraries prepare in them, and those that are."""
HOPELESS: Final = 1.5
"""Number of times as long as with the other number, for a single unit, after which one is not tried further."""
_HARDLY: Final = 0.5
"""Share of a processor that others may use without its being counted as theirs: so far all threads are no slower."""
_neighbours: Final = Neighbours()


class Pace:
    """Chooses the number of threads for units of work that repeat, such as the iterations of a training run.

    As long as no other program is busy that is the usual number, so results repeat bit by bit.

        pace = Pace()
        for batch in batches:
            with pace.unit(len(batch)):
                network(batch)
    """

    def __init__(self, neighbours: Neighbours = _neighbours, clock: Callable[[], float] = time.perf_counter) -> None:
        self._neighbours, self._clock = neighbours, clock
        self.usual = self.threads = usual_threads()
        self._tried_beside = 0
        self._seconds: list[float] = []
        self._trials: list[int] = []
        self._measured: dict[int, float] = {}
        self._look()

    @contextmanager
    def unit(self, amount: float = 1.0) -> Iterator[None]:
        """Run a unit of work, so much of what usually is one, with the chosen number of threads."""
        if self.usual != (usual := usual_threads()):  # somebody has set another one
            self.usual, self._tried_beside, self._trials, self._seconds = usual, 0, [], []
            self._look()
        if usual == 1:
            yield
            return
        begin = self._clock()
        if self.threads == torch.get_num_threads():
            yield
        else:
            with limited_threads(self.threads):
                yield
        if self._trials:
            self._try_on((self._clock() - begin) / amount)
        elif self._clock() >= self._look_at:
            self._look()

    def _look(self) -> None:
        """Take as many threads as there are processors left; begin to time them and all threads where both may pay."""
        taken = 0 if self.usual == 1 else ceil(self._neighbours.busy() - _HARDLY)
        left = max(processors() - taken, 1)
        self._look_at = self._clock() + LOOK
        if taken <= 0:
            self.threads, self._tried_beside = self.usual, 0
        elif self.usual <= 2 * left:
            self.threads, self._tried_beside = min(left, self.usual), 0
        elif abs(taken - self._tried_beside) > self._tried_beside / 4:
            self.threads, self._tried_beside = left, taken
            self._trials, self._measured = [left, self.usual], {}
        elif self.threads < self.usual:
            self.threads = left

    def _try_on(self, seconds: float) -> None:
        """Take note of a unit of the trial that is under way; after the last one, keep the faster number."""
        self._seconds.append(seconds)
        hopeless = seconds > HOPELESS * min(self._measured.values(), default=inf)
        if len(self._seconds) < WARM_UP + TRIED and not hopeless:
            return
        self._measured[self.threads] = seconds if hopeless else sum(self._seconds[WARM_UP:]) / TRIED
        self._seconds = []
        self._trials.pop(0)
        self.threads = self._trials[0] if self._trials else min(self._measured, key=lambda n: self._measured[n])
        self._look_at = self._clock() + LOOK
