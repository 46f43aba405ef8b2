"""Scans one behind the other: some are read and some are written while another goes through the network.

A network on a GPU would otherwise wait for files to be unpacked and packed, which processors do. What the scans ahead
and behind hold in this process is part of the bound that is printed for the scan between them; the processes that read
files are not. There are as many scans beside one as the machine has memory for, up to `scans_beside`. Where it has none
for any, a scan has it for itself: those before are written first, and the next one is read in its turn. The network
runs in the thread that asks for results, scan after scan, so that masks are those of `Stages.all`.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Self

from fheat.data.case import Case
from fheat.inference.masks import LeftOut, Result
from fheat.inference.stages import Done, ReadScan, Stages, Unwritten, Workload, Written, fits, outcome
from fheat.io.confined import many_readers
from fheat.io.content import SIZE_LIMIT
from fheat.system.processors import processors
from fheat.system.signals import finishing

_FLOAT32_PARTS = 2
"""The limit of a DICOM series is compared with its voxels as float32; most are kept as int16."""


def scans_beside() -> int:
    """Return how many scans are read ahead at most, and how many are written: one for four processors, up to four.

    To unpack a scan of CT size and to pack its mask takes a processor several times as long as a GPU takes for
    half-overlapping windows.
    """
    return min(4, max(1, processors() // 4))


@dataclass(frozen=True)
class _Behind:
    """A scan that is being written: the bytes that it holds, and what will have become of it."""

    case: Case
    held: int
    written: Future[Written | LeftOut]


class Overlap:
    """Runs the stages of several scans at a time; use it in a `with` statement.

    Args:
        stages: of all scans.
        earlier: returns what an earlier run makes of a scan; None if it is still to do.
    """

    def __init__(self, stages: Stages, earlier: Callable[[Case], Result | None]) -> None:
        self._stages, self._earlier = stages, earlier
        self._beside = scans_beside()
        self._writer = ThreadPoolExecutor(self._beside, thread_name_prefix="writing")
        self._ahead: deque[Future[ReadScan | Result | None]] = deque()
        """Those of the scans that follow, in order."""
        self._behind: deque[_Behind] = deque()
        self._largest = self._room = 0
        """Most bytes of voxels of a scan so far, and most bytes that one takes while it is read."""
        self._readers = ExitStack()

    def __enter__(self) -> Self:
        # Those ahead, the one in its turn, and those behind, whose references are read.
        self._readers.enter_context(many_readers(2 * self._beside + 1))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.shutdown()  # scans that are read ahead are not waited for
        self._readers.close()

    def results(self, cases: Sequence[Case]) -> Generator[Result, None, None]:
        """Yield what becomes of each scan, that of a mask when it is written and a scan behind it left the network."""
        for place, case in enumerate(cases, start=1):
            with finishing():  # until its windows are done; `left` waits for its mask
                yield from self._step(case, cases[place : place + self._beside])
        with finishing():
            yield from self.left()

    def left(self) -> Iterator[Result]:
        """Wait for the scans that are being written, yield what became of them, and then raise what one failed with."""
        failure: Exception | None = None
        while self._behind:
            try:
                result = self._first_behind()
            except Exception as error:
                failure = failure or error
                continue
            yield result
        if failure is not None:
            raise failure

    def _first_behind(self) -> Result:
        first = self._behind[0]
        wait([first.written])  # whoever interrupts this finds it still behind
        self._behind.popleft()
        return self._stages.told(first.case, first.written.result())

    def _step(self, case: Case, following: Sequence[Case]) -> Iterator[Result]:
        """Take one scan through the network and pass it on to be written, once one of those before is written."""
        ahead = self._ahead.popleft() if self._ahead else None
        with self._stages.watcher.waiting(f"reading {case.id}"):
            found = None if ahead is None else ahead.result()
        if found is None:
            yield from self.left()  # nobody knows yet whether there is memory for it beside others
            self._leave_ahead()
            with self._stages.watcher.waiting(f"reading {case.id}"):
                found = self._take(case)
        if not isinstance(found, ReadScan):
            yield found
            return
        made = outcome(case, partial(self._segment, found, following))
        del found, ahead  # a refused scan holds nothing while those behind are waited for
        if isinstance(made, LeftOut):
            yield from self.left()
            yield made
            return
        while self._behind and (len(self._behind) >= self._beside or self._behind[0].written.done()):
            yield self._first_behind()
        written = self._writer.submit(outcome, case, partial(self._stages.write, made))
        self._behind.append(_Behind(case, self._stages.behind(made.workload), written))

    def _segment(self, read: ReadScan, following: Sequence[Case]) -> Unwritten:
        workload = self._stages.workload(read)
        bound = workload.bound
        self._largest, self._room = max(self._largest, bound.scan), max(self._room, bound.ahead)
        return self._stages.segment(read, self._beside_others(workload, following))

    def _beside_others(self, workload: Workload, following: Sequence[Case]) -> Workload:
        """Read as many of the scans that follow as there is memory for, and count what they and those behind hold.

        Where there is none, wait until those behind are written, and leave those that were read to their turns.
        """
        held = sum(one.held for one in self._behind)
        for count in range(len(following), len(self._ahead) - 1, -1):
            others = held + count * self._room
            if fits(workload.bound, others):
                for case in islice(following, len(self._ahead), count):
                    self._ahead.append(in_background(partial(self._read_ahead, case, self._largest)))
                return replace(workload, bound=replace(workload.bound, others=others))
        wait([one.written for one in self._behind])
        self._leave_ahead()
        return workload

    def _leave_ahead(self) -> None:
        """Forget the scans that are read ahead, so that they hold nothing; they are read again."""
        wait(self._ahead)
        self._ahead.clear()

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
