"""Cohorts on a Ray cluster: every worker loads the network once and takes scans from a queue, a few at a time.

    record = predict_on_ray(partial(Predictor, "la-4"), "scans", "masks")

The masks and the record are those of `predict_folder`. The scans of a worker that dies are done by others.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch

from fheat.data.case import Case
from fheat.data.inputs import find_scans
from fheat.inference.folder import entered, fill_record, tell_skipped
from fheat.inference.ledger import Ledger
from fheat.inference.masks import MAPS, Changed, LeftOut, Masks, Preview, Result
from fheat.inference.predictor import MaskFormat, Predictor
from fheat.inference.record import PredictionRecord, new_record
from fheat.inference.stages import FolderWatcher, Stages
from fheat.system.cluster import Ray, Share, cluster, machines_of, share_of
from fheat.system.errors import BadInput

AHEAD: Final = 2
"""Number of scans that a worker is given at once: one that it segments, and the next one, so that it never waits."""
ATTEMPTS: Final = 3
"""Number of workers that may die of a scan before it is refused."""
RESTARTS: Final = 10
"""How often a worker that died is started again, on whatever machine there is room."""


def predict_on_ray(
    build: Callable[..., Predictor],
    source: str | Path,
    target: str | Path,
    *,
    parallel: int | None = None,
    device: str | None = None,
    address: str | None = None,
    mask_format: MaskFormat = "nifti",
    preview: bool | Preview = True,
    overwrite: bool = False,
    changed: Changed = "recompute",
    maps: Sequence[str] = (),
    series: str | None = None,
    pattern: str | None = None,
    command: str = "",
    watcher: FolderWatcher | None = None,
) -> PredictionRecord:
    """Write a mask for every scan, on all machines of a cluster; see `predict_folder` for what is not said here.

    Args:
        build: called by every worker with the keyword `device`; returns what segments a scan. It is sent to the
            workers, and so are scans and masks by their path only: the machines must share their folders.
        source: as for `predict_folder`.
        target: as for `predict_folder`.
        parallel: number of workers on each GPU, or on the processors of each machine; by default one.
        device: `cpu` or `cuda`; by default GPUs if the cluster has any.
        address: of the cluster; see `system.cluster.cluster`.
        mask_format: as for `predict_folder`.
        preview: as for `predict_folder`.
        overwrite: as for `predict_folder`.
        changed: as for `predict_folder`.
        maps: which of `fheat.inference.masks.MAPS` the predictors were made for.
        series: as for `predict_folder`.
        pattern: as for `predict_folder`.
        command: as for `predict_folder`.
        watcher: hears of every scan that is segmented or refused.
    """
    maps = tuple(name for name in MAPS if name in maps)
    pictures = Preview() if preview is True else preview or None
    masks = Masks(Path(target), mask_format, overwrite=overwrite, preview=pictures, changed=changed, maps=maps)
    found = find_scans(source, series, pattern)
    cases, heard = found.cases, watcher or FolderWatcher()
    with masks.prepared(source, cases), cluster(address) as ray:
        share = share_of(machines_of(ray), parallel or 1, device)
        pool = _Pool(ray, share, build, masks)
        try:
            record = pool.begin(source)
            record.command = command
            tell_skipped(record, found, heard)
            ledger, journal = Ledger(masks.folder), record.journal(masks.folder)
            earlier = {case.id: masks.earlier(case, ledger, record.making) for case in cases}
            left = [case for case in cases if earlier[case.id] is None]
            journal.begin([path.name for case in left for path in masks.paths(case)])
            results = chain([done for done in earlier.values() if done is not None], pool.results(left))
            fill_record(record, cases, masks, (entered(one, journal) for one in results), heard, ledger, journal)
        finally:
            pool.end()
    return record


class _Worker:
    """Segments scans on a machine of the cluster."""

    def __init__(self, build: Callable[..., Predictor], masks: Masks, share: Share, here: str) -> None:
        with suppress(OSError):  # where that folder is missing, relative paths are too, and are refused by name
            os.chdir(here)
        torch.set_num_threads(share.threads)
        self._build, self._masks, self._device = build, masks, share.device

    @cached_property
    def _predictor(self) -> Predictor:
        return self._build(device=self._device)

    def prepare(self, source: str | Path) -> PredictionRecord | Exception:
        """Load the network, and return the record of a run that has done nothing yet, or why there can be none."""
        try:
            return new_record(self._predictor, source)
        except Exception as error:  # raised again where the user sees it, without the frames of Ray
            return error

    def segment(self, case: Case) -> Result:
        """Segment a scan; a mask that a worker left behind when it died is written again."""
        return Stages(self._predictor, self._masks, FolderWatcher()).all(case)


class _Pool:
    """The workers, the scans that each of them has, and the scans that are still to be done.

    A worker is ready once it has loaded the network: a machine that does not come back after a failure gets no scan.
    """

    def __init__(self, ray: Ray, share: Share, build: Callable[..., Predictor], masks: Masks) -> None:
        self._ray = ray
        kind = ray.remote(max_restarts=RESTARTS, **share.resources())(_Worker)
        self._workers = [kind.remote(build, masks, share, os.getcwd()) for _ in range(share.workers)]
        self._ready: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._flying: dict[Any, tuple[Any, Case]] = {}
        self._deaths: Counter[Any] = Counter()

    def begin(self, source: str | Path) -> PredictionRecord:
        """Start all workers, and return the record of the first that has loaded the network."""
        self._source = source
        for worker in self._workers:
            self._start(worker)
        while True:
            (task,), _ = self._ray.wait(list(self._starting))
            record = self._started(task)
            if record is not None:
                return record

    def results(self, cases: Iterable[Case]) -> Iterator[Result]:
        """Yield what becomes of each scan, as soon as it is known."""
        queue, blamed = deque(cases), Counter[str]()
        while queue or self._flying:
            for worker in self._ready:
                for _ in range(AHEAD - sum(busy is worker for busy, _ in self._flying.values())):
                    if queue:
                        case = queue.popleft()
                        self._flying[worker.segment.remote(case)] = worker, case
            (task, *_), _ = self._ray.wait([*self._flying, *self._starting])
            if task in self._starting:
                self._started(task)
                continue
            worker, case = self._flying[task]
            try:
                result: Result = self._ray.get(task)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None  # not of this scan, such as a full disk
            except self._ray.exceptions.RayError:
                blamed[case.id] += 1
                lost = self._died(worker)
                if blamed[case.id] == ATTEMPTS:
                    lost.remove(case)
                    yield LeftOut(case.id, f"{case.images[0]}: {ATTEMPTS} workers died of it; use a larger machine")
                queue.extend(lost)
            else:
                del self._flying[task]
                yield result

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self._ray.kill(worker)

    def _start(self, worker: Any) -> None:
        self._starting[worker.prepare.remote(self._source)] = worker

    def _started(self, task: Any) -> PredictionRecord | None:
        """Take a worker that has loaded the network, or start one that died meanwhile again."""
        worker = self._starting.pop(task)
        try:
            found: PredictionRecord | Exception = self._ray.get(task)
        except self._ray.exceptions.RayError:
            self._died(worker)
            return None
        if isinstance(found, Exception):
            raise found
        self._ready.append(worker)
        return found

    def _died(self, worker: Any) -> list[Case]:
        """Take a worker's scans away and start it again, unless it died too often; return the scans."""
        lost = [case for busy, case in self._flying.values() if busy is worker]
        self._flying = {task: value for task, value in self._flying.items() if value[0] is not worker}
        self._ready = [other for other in self._ready if other is not worker]
        self._deaths[worker] += 1
        if self._deaths[worker] <= RESTARTS:
            self._start(worker)
        if not self._starting and not self._ready:
            raise BadInput("cluster", "all workers died again and again", "see the logs of Ray, and call again")
        return lost
