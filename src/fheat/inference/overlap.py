"""Scans one behind the other: one is read and one is written while a third goes through the network.

A network on a GPU would otherwise wait for files to be unpacked and packed, which processors do. At most one scan is
ahead and one behind, and what they hold is part of the bound that is printed for the scan between them. Where that is
more than the machine has, the scan has it for itself: the one before is written first, and the next one is read in its
turn. The network runs in the thread that asks for results, scan after scan, so that masks are those of `Stages.all`.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from fheat.data.case import Case
from fheat.inference.masks import LeftOut, Result
from fheat.inference.stages import Done, ReadScan, Stages, Unwritten, Written, fits, outcome
from fheat.io.content import SIZE_LIMIT
from fheat.system.signals import finishing

_FLOAT32_PARTS = 2
"""The limit of a DICOM series is compared with its voxels as float32; most are kept as int16."""


@dataclass(frozen=True)
class _Behind:
    """A scan that is being written: the bytes that it holds, and what will have become of it."""

    case: Case
    held: int
    written: Future[Written | LeftOut]


class Overlap:
    """Runs the stages of up to three scans at a time; use it in a `with` statement.

    Args:
        stages: of all scans.
        earlier: returns what an earlier run makes of a scan; None if it is still to do.
    """

    def __init__(self, stages: Stages, earlier: Callable[[Case], Result | None]) -> None:
        self._stages, self._earlier = stages, earlier
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writing")
        self._ahead: Future[ReadScan | Result | None] | None = None
        self._behind: _Behind | None = None
        self._largest = self._room = 0
        """Most bytes of voxels of a scan so far, and most bytes that one takes while it is read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.shutdown()  # the scan that is read ahead is not waited for

    def results(self, cases: Sequence[Case]) -> Generator[Result, None, None]:
        """Yield what becomes of each scan, that of a mask as soon as the next scan has gone through the network."""
        for case, following in zip(cases, [*cases[1:], None], strict=True):
            with finishing():  # until its windows are done; `left` waits for its mask
                yield from self._step(case, following)
        with finishing():
            yield from self.left()

    def left(self) -> Iterator[Result]:
        """Wait for the scan that is being written, if there is one, and yield what became of it."""
        if self._behind is not None:
            behind, written = self._behind, self._behind.written.result()
            self._behind = None
            yield self._stages.told(behind.case, written)

    def _step(self, case: Case, following: Case | None) -> Iterator[Result]:
        """Take one scan through the network and pass it on to be written, once the one before is written."""
        ahead, self._ahead = self._ahead, None
        with self._stages.watcher.waiting(f"reading {case.id}"):
            found = None if ahead is None else ahead.result()
        if found is None:
            yield from self.left()  # nobody knows yet whether there is memory for both
            with self._stages.watcher.waiting(f"reading {case.id}"):
                found = self._take(case)
        if not isinstance(found, ReadScan):
            yield found
            return
        made = outcome(case, partial(self._segment, found, following))
        yield from self.left()
        if isinstance(made, LeftOut):
            yield made
            return
        written = self._writer.submit(outcome, case, partial(self._stages.write, made))
        self._behind = _Behind(case, self._stages.behind(made.workload), written)

    def _segment(self, read: ReadScan, following: Case | None) -> Unwritten:
        workload = self._stages.workload(read)
        bound = workload.bound
        self._largest, self._room = max(self._largest, bound.scan), max(self._room, bound.ahead)
        others = (0 if self._behind is None else self._behind.held) + (0 if following is None else self._room)
        if fits(bound, others):
            workload = replace(workload, bound=replace(bound, others=others))
            if following is not None:
                self._ahead = in_background(partial(self._read_ahead, following, self._largest))
        elif self._behind is not None:
            wait([self._behind.written])
        return self._stages.segment(read, workload)

    def _take(self, case: Case, limit: int = SIZE_LIMIT) -> ReadScan | Result:
        """Return what an earlier run makes of a scan, else read it."""
        done = self._earlier(case)
        return outcome(case, partial(self._stages.read, case, limit)) if done is None else done

    def _read_ahead(self, case: Case, most: int) -> ReadScan | Result | None:
        """Return what `_take` does, or None where that is left to the scan's turn.

        So it is with a scan that takes more than `most` bytes, and with one that is refused, by whatever reason.
        """
        limit = _FLOAT32_PARTS * most if case.images[0].is_dir() else most // len(case.images)
        found = self._take(case, limit)
        if isinstance(found, ReadScan):
            return found if found.prepared.stored.nbytes <= most else None
        return None if isinstance(found, LeftOut) and found.reason is not None else found


def in_background(work: Callable[[], Done]) -> Future[Done]:
    """Start work in a thread of its own that a program which ends does not wait for, unlike those of an executor."""
    future: Future[Done] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whoever asks for the result hears of it
            future.set_exception(error)

    threading.Thread(target=run, name="reading", daemon=True).start()
    return future
