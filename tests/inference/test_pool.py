"""The workers of a cohort, with a Ray of a few lines whose workers die when the test says so.

`tests/experiments/test_ray.py` does the same with real processes.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fheat.data.case import Case
from fheat.inference.masks import LeftOut, Masks
from fheat.inference.on_ray import AHEAD, ATTEMPTS, RESTARTS, _Pool
from fheat.system.cluster import Share
from fheat.system.errors import BadInput

MASKS = Masks(Path("masks"), "nifti", overwrite=True, preview=None)


class Died(Exception):  # noqa: N818 - it says what happened
    """What Ray raises where a worker has died."""


class Raised(Died):
    """What Ray raises where the code of a worker has raised something."""

    def __init__(self, cause):
        self.cause = cause


class Call:
    """A call of a worker; the oldest call of a worker is the one that it is busy with."""

    def __init__(self, worker, case):
        self.worker, self.case = worker, case


class FakeWorker:
    def __init__(self, number):
        self.number = number
        self.prepare = SimpleNamespace(remote=lambda source: Call(self, None))
        self.segment = SimpleNamespace(remote=lambda case: Call(self, case))


class FakeRay:
    """Does one call per `wait`, worker after worker; a worker dies of a case as often as `deadly` says."""

    exceptions = SimpleNamespace(RayError=Died, RayTaskError=Raised)

    def __init__(self, *, deadly=(), never=(), prepared=None, raises=None):
        self.deadly, self.never, self.prepared, self.raises = Counter(dict(deadly)), never, prepared, raises
        self.done, self.killed, self.count = [], [], 0

    def remote(self, **options):
        return lambda kind: SimpleNamespace(remote=self._create)

    def _create(self, *arguments):
        self.count += 1
        return FakeWorker(self.count - 1)

    def wait(self, calls):
        for call in calls:
            if call.worker.number not in self.never or call.case is not None:
                return [call], []
        raise AssertionError("nothing can go on")

    def get(self, call):
        if call.case is None:
            return self.prepared or f"record of worker {call.worker.number}"
        if self.raises is not None:
            raise Raised(self.raises)
        if self.deadly[call.case.id] > 0:
            self.deadly[call.case.id] -= 1
            raise Died
        self.done.append(call.case.id)
        return LeftOut(call.case.id, "done")

    def kill(self, worker):
        self.killed.append(worker.number)


def pool_of(ray, workers):
    return _Pool(ray, Share("cpu", 0, 1, workers), lambda device: None, MASKS)


def cases_of(count):
    return [Case(f"case{number}", (Path(f"case{number}.nii.gz"),)) for number in range(count)]


@given(
    workers=st.integers(1, 4),
    count=st.integers(0, 12),
    deadly=st.dictionaries(st.integers(0, 11), st.integers(1, 5), max_size=3),
)
def test_every_scan_has_one_result_whatever_dies(workers, count, deadly):
    """Scans that kill fewer workers than are tried are done, the others are refused, and nothing is done twice."""
    cases = cases_of(count)
    ray = FakeRay(deadly={f"case{number}": deaths for number, deaths in deadly.items()})
    pool = pool_of(ray, workers)
    assert pool.begin("scans") == "record of worker 0"
    results = {result.id: result.reason for result in pool.results(cases)}
    assert results.keys() == {case.id for case in cases}
    for number, case in enumerate(cases):
        fatal = deadly.get(number, 0) >= ATTEMPTS
        assert ("workers died of it" in results[case.id]) == fatal
        assert ray.done.count(case.id) == (0 if fatal else 1)


def test_a_worker_has_a_scan_and_the_next_one():
    ray = FakeRay()
    pool = pool_of(ray, 1)
    pool.begin("scans")
    results = pool.results(cases_of(5))
    next(results)
    assert len(pool._flying) == AHEAD - 1
    assert len(list(results)) == 4


def test_a_worker_that_never_starts_gets_no_scan():
    """Such as one of a machine that is gone; the other one does everything."""
    ray = FakeRay(never=[1])
    pool = pool_of(ray, 2)
    pool.begin("scans")
    assert [result.id for result in pool.results(cases_of(4))] == [f"case{number}" for number in range(4)]


def test_workers_that_die_again_and_again_end_the_run():
    ray = FakeRay(deadly={f"case{number}": 2 for number in range(40)})
    pool = pool_of(ray, 1)
    pool.begin("scans")
    with pytest.raises(BadInput, match="all workers died again and again"):
        list(pool.results(cases_of(40)))
    assert pool._deaths.total() == RESTARTS + 1
    pool.end()
    assert ray.killed == [0]


def test_what_is_wrong_with_the_network_or_the_disk_is_raised_as_it_is():
    with pytest.raises(BadInput, match="no such model"):
        pool_of(FakeRay(prepared=BadInput("m", "no such model", "x")), 2).begin("scans")
    pool = pool_of(FakeRay(raises=OSError(28, "No space left on device")), 1)
    pool.begin("scans")
    with pytest.raises(OSError, match="No space left"):
        list(pool.results(cases_of(2)))
