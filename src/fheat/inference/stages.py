"""One scan on its way to a mask, in three stages: read, segment, write.

Only the second one needs the network, and a scan holds all that its next stage needs, so that several scans may be in
the first and the last stage while one is in the second. Whoever runs a stage may do so in any thread: what a watcher is
to hear is said in the second one, or is part of what a stage returns.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from fheat.data.appearance import Unusual
from fheat.data.case import Case
from fheat.data.classes import millilitres
from fheat.data.preprocessing import PreparedScan
from fheat.data.read import read_image
from fheat.inference.ledger import Journal, file_sha256, scan_sha256
from fheat.inference.masks import LeftOut, Masks, Result
from fheat.inference.memory import MemoryBound, machine_bytes
from fheat.inference.postprocessing import Prediction
from fheat.inference.predictor import Predictor
from fheat.inference.record import SegmentedScan
from fheat.inference.runtimes import UnusableRuntime
from fheat.io import read_series
from fheat.io.content import SIZE_LIMIT
from fheat.io.dicom import Series
from fheat.io.volume import Volume
from fheat.system.errors import BadInput, first_line, lacks_memory
from fheat.system.progress import Progress, unwatched

Done = TypeVar("Done")


@dataclass(frozen=True)
class Workload:
    """Work that segmenting one scan will take, known before it starts."""

    windows: int
    """Number of windows."""
    bound: MemoryBound


class FolderWatcher:
    """Hears what becomes of each scan of a folder while it happens; every method does nothing here."""

    def waiting(self, what: str) -> AbstractContextManager[Progress]:
        """Return a context for work on a scan that has no windows to count yet, named in words."""
        return unwatched(what)

    def segmenting(self, case: str, workload: Workload) -> AbstractContextManager[Progress]:
        """Return a context in which the scan is segmented; its value is told how many windows are done."""
        return unwatched(case)

    def segmented(self, scan: SegmentedScan) -> None:
        """Hear that a mask is written, and in what the scan is unlike the training scans of the model."""

    def progressed(self, done: int, total: int, seconds_left: float | None) -> None:
        """Hear how many scans are done, and about how long the others will take, where that can be said."""

    def noted(self, case: str, text: str) -> None:
        """Hear a remark on a scan."""

    def skipped(self, name: str, reason: str) -> None:
        """Hear that something among the scans is no scan, before the first of them."""

    def refused(self, case: str, reason: str) -> None:
        """Hear that a scan is not segmented."""


@dataclass(frozen=True)
class ReadScan:
    """A scan after the first stage: its voxels, the hashes of its files, and itself as the network sees it."""

    case: Case
    hashes: tuple[str, ...]
    source: Volume | Series
    prepared: PreparedScan
    seconds: float
    """Time of this stage."""

    @property
    def volume(self) -> Volume:
        """The voxels as stored."""
        return self.source.volume if isinstance(self.source, Series) else self.source


@dataclass(frozen=True)
class Unwritten:
    """A scan after the second stage: what the network says of it, and how that was found."""

    read: ReadScan
    prediction: Prediction
    workload: Workload
    unusual: list[Unusual]
    seconds: float
    """Time of the stages so far."""


@dataclass(frozen=True)
class Written:
    """A scan after the last stage: its entry in the record, and remarks on it."""

    scan: SegmentedScan
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Stages:
    """The three stages with what all scans of a run share.

    A stage raises `BadInput`, `ValueError`, `RuntimeError` or `MemoryError` for a scan that cannot be segmented;
    `outcome` turns them into a refusal. Any other error is none of the scan, and neither is `UnusableRuntime`.
    """

    predictor: Predictor
    masks: Masks
    watcher: FolderWatcher
    journal: Journal | None = None
    """Where a mask is announced before it is written, and entered after that."""
    to_come: Mapping[str, int] = field(default_factory=dict)
    """Number of scans that are known to come after each one, by its name; none where nothing is said."""

    def read(self, case: Case, limit: int = SIZE_LIMIT) -> ReadScan:
        """Hash, read and check a scan and measure its intensities.

        A file with more bytes of voxels than `limit` raises `BadInput`, see the reader of each format.
        """
        begin = time.perf_counter()
        hashes = _hashes(case)  # before reading: a scan that changes meanwhile is then segmented again
        source: Volume | Series
        if self.masks.format == "nifti":
            source = read_image(case, limit)
        else:
            source = read_series(case.images[0], files=case.files, limit=limit)
        volume = source.volume if isinstance(source, Series) else source
        self.predictor.check_plausible(volume, case.images[0])
        prepared = self.predictor.scan(volume)
        _ = prepared.moments  # which are kept
        return ReadScan(case, hashes, source, prepared, time.perf_counter() - begin)

    def workload(self, read: ReadScan) -> Workload:
        """Return what the second stage will take, or raise `BadInput` if that is more than this machine has."""
        with self.watcher.waiting("preparing the network for this machine (once)"):  # seen where it is compiled first
            bound = self.predictor.memory(read.prepared, to_come=self.to_come.get(read.case.id, 0))
            workload = Workload(self.predictor.sliding(None).count(read.prepared.shape), bound)
        if not fits(bound):
            available = (machine_bytes() or 0) / 2**20
            reason = f"would take {bound.total / 2**20:,.0f} MiB, this machine has {available:,.0f}"
            raise BadInput(read.case.images[0], reason, "check its spacing, or use a larger machine")
        return workload

    def behind(self, workload: Workload) -> int:
        """Return the bytes that a scan holds in its last stage."""
        preview = self.masks.preview
        return workload.bound.behind(0 if preview is None else preview.bytes_per_voxel)

    def segment(self, read: ReadScan, workload: Workload) -> Unwritten:
        """Run the windows of a scan."""
        begin, predictor = time.perf_counter(), self.predictor
        self.masks.get_ready()
        unusual = predictor.unusual(read.prepared)
        with self.watcher.segmenting(read.case.id, workload) as show:
            to_come = self.to_come.get(read.case.id, 0)
            prediction = predictor.run_windows(read.volume, read.prepared, show, to_come=to_come)
        seconds = read.seconds + time.perf_counter() - begin
        return Unwritten(read, prediction, workload, unusual, seconds)

    def write(self, made: Unwritten) -> Written:
        """Finish the mask, write it with its maps and its picture, and enter it in the journal."""
        begin, case, masks = time.perf_counter(), made.read.case, self.masks
        self.predictor.finish(made.prediction)
        if self.journal is not None:
            self.journal.begin([path.name for path in masks.paths(case)])
        reference, notes = self._reference(made.read)
        card = self.predictor.card
        masks.write(case, made.read.source, made.prediction, self.predictor.labels, card.codes, reference)
        mask = made.prediction.mask
        scan = SegmentedScan(
            id=case.id,
            images=[str(image) for image in case.images],
            images_sha256=list(made.read.hashes),
            mask=str(masks.path(case)),
            mask_sha256=file_sha256(masks.path(case)),
            maps_sha256={path.name: file_sha256(path) for path in masks.paths(case)[1:]},
            shape=list(mask.data.shape),
            spacing=list(mask.spacing),
            orientation=mask.orientation,
            windows=made.workload.windows,
            runtime=made.prediction.runtime,
            precision=made.prediction.precision,
            memory_bound_bytes=made.workload.bound.total,
            memory_parts_bytes=asdict(made.workload.bound),
            seconds=round(made.seconds + time.perf_counter() - begin, 3),
            millilitres=millilitres(mask, self.predictor.classes),
            unusual=made.unusual,
        )
        if self.journal is not None:
            self.journal.done(asdict(scan))
        return Written(scan, notes)

    def all(self, case: Case) -> Result:
        """Run the stages of a scan one after the other and say what became of it."""
        return self.told(case, outcome(case, lambda: self._all(case)))

    def told(self, case: Case, written: Written | LeftOut) -> Result:
        """Tell the watcher what the last stage remarked, and return what became of the scan."""
        if isinstance(written, LeftOut):
            return written
        for note in written.notes:
            self.watcher.noted(case.id, note)
        return written.scan

    def _all(self, case: Case) -> Written:
        with self.watcher.waiting(f"reading {case.id}"):
            read = self.read(case)
        return self.write(self.segment(read, self.workload(read)))

    def _reference(self, read: ReadScan) -> tuple[Volume | None, tuple[str, ...]]:
        """Return the mask to draw beside ours; one that cannot be drawn is no reason to lose ours."""
        try:
            return None if self.masks.preview is None else self.masks.preview.mask(read.case, read.volume), ()
        except BadInput as error:
            return None, (f"the picture has no reference, {error}",)


def outcome(case: Case, stage: Callable[[], Done]) -> Done | LeftOut:
    """Return what a stage of a scan returns, or why the scan cannot be segmented."""
    try:
        return stage()
    except UnusableRuntime:
        raise
    except (BadInput, ValueError, RuntimeError, MemoryError) as error:
        return LeftOut(case.id, _reason(case, error))


def fits(bound: MemoryBound, others: int = 0) -> bool:
    """Return whether this machine has the memory of a scan, and `others` bytes of those beside it."""
    available = machine_bytes()
    return available is None or replace(bound, others=others).total <= available


def _hashes(case: Case) -> tuple[str, ...]:
    try:
        return scan_sha256(case.images, case.files)
    except OSError as error:
        path = error.filename or case.images[0]
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None


def _reason(case: Case, error: Exception) -> str:
    """Say in one line why a scan was not segmented."""
    if isinstance(error, BadInput):
        return str(error)
    if lacks_memory(error):
        return f"{case.images[0]}: there is not enough memory for it; use a smaller --batch or another --device"
    return f"{case.images[0]}: {first_line(error)}; give the kind of scan the model was trained on"
