"""Segment every scan of a folder: which masks are kept, which scans are refused, and a record of what was done."""

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import torch

from fheat.data.case import Case
from fheat.data.classes import millilitres
from fheat.data.dicom_tree import FoundScans
from fheat.data.inputs import find_scans
from fheat.data.read import read_image
from fheat.inference.ledger import Journal, Ledger, file_sha256, scan_sha256
from fheat.inference.masks import MAPS, Changed, LeftOut, Masks, Preview, Result
from fheat.inference.memory import MemoryBound, machine_bytes
from fheat.inference.predictor import MaskFormat, Predictor
from fheat.inference.record import PredictionRecord, SegmentedScan, new_record
from fheat.io import read_series
from fheat.io.dicom import Series
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.system.progress import Progress, unwatched
from fheat.system.signals import finishing


@dataclass(frozen=True)
class Workload:
    """What segmenting one scan will take, known before it starts."""

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


class FolderOptions(TypedDict, total=False):
    """The options of `predict_folder`."""

    mask_format: MaskFormat
    preview: bool | Preview
    overwrite: bool
    changed: Changed
    series: str | None
    pattern: str | None
    command: str
    watcher: FolderWatcher | None


def predict_folder(
    predictor: Predictor,
    source: str | Path,
    target: str | Path,
    *,
    mask_format: MaskFormat = "nifti",
    preview: bool | Preview = True,
    overwrite: bool = False,
    changed: Changed = "recompute",
    series: str | None = None,
    pattern: str | None = None,
    command: str = "",
    watcher: FolderWatcher | None = None,
) -> PredictionRecord:
    """Write a mask for every scan, in the scan's own place, and return the record of what was done.

    Args:
        predictor: what segments a scan. Where it has `probabilities` or `uncertainty`, ID_probabilities.nii.gz and
            ID_uncertainty.nii.gz are written beside the mask.
        source: a scan, a folder of scans, a DICOM series, a tree of them, or a dataset; see `data.inputs.find_scans`.
        target: folder for the masks, created if needed.
        mask_format: `nifti` writes ID.nii.gz; for DICOM series `seg` writes DICOM SEG (ID.dcm), and `rtstruct` contours
            (ID_rtstruct.dcm).
        preview: write ID.png, a picture of the mask's contour on three planes, too; `Preview` says how.
        overwrite: replace masks that exist, whoever made them.
        changed: what to do with a scan that has a mask of ours of another scan, model or setting.
        series: UID or description of the DICOM series to segment, where there are others.
        pattern: names of the scans below `source`, such as `{id}_LGE.nii.gz`; see `fheat.system.patterns`.
        command: what was typed, for the record.
        watcher: hears what becomes of each scan.

    A mask that exists is kept where the hashes of mask, scan and model and the settings are those that run.json states.
    A file that we did not make, or that was edited since, is never replaced without `overwrite`: its scan is refused.

    A scan that cannot be used is listed in `refused` and the others still run; one that does not look like the training
    scans is segmented, and its record says in what it differs. The record is written to run.json in
    `target`, or run-2.json, ... where that exists, also where the run is interrupted. A signal that asks to stop does
    so after the scan in work, or within it after `system.signals.GRACE` seconds. Raises `BadInput` where no scan
    can be read or a mask would replace a scan, and `ValueError` for DICOM SEG without DICOM.
    """
    heard = watcher or FolderWatcher()
    maps = tuple(name for name in MAPS if getattr(predictor, name))
    pictures = Preview() if preview is True else preview or None
    masks = Masks(Path(target), mask_format, overwrite=overwrite, preview=pictures, changed=changed, maps=maps)
    found = find_scans(source, series, pattern)
    cases = found.cases
    masks.check(source, cases)
    record = new_record(predictor, source)
    record.command = command
    tell_skipped(record, found, heard)
    ledger, journal = Ledger(masks.folder), record.journal(masks.folder)

    def results() -> Generator[Result, None, None]:
        for case in cases:
            with finishing():  # until the result is entered, which is when the next one is asked for
                done = masks.earlier(case, ledger, record.making)
                yield done or attempt(case, predictor, masks, heard, journal)

    with closing(results()) as made:
        fill_record(record, cases, masks, made, heard, ledger, journal)
    return record


def tell_skipped(record: PredictionRecord, found: FoundScans, watcher: FolderWatcher) -> None:
    """Enter what lies among the scans and is none, such as the structures of a DICOM study."""
    record.skipped.update(found.skipped)
    for name, reason in found.skipped.items():
        watcher.skipped(name, reason)


def fill_record(
    record: PredictionRecord,
    cases: Sequence[Case],
    masks: Masks,
    results: Iterable[Result],
    watcher: FolderWatcher,
    ledger: Ledger,
    journal: Journal,
) -> None:
    """Enter what became of each case, in the order of the cases, and write the record, also after an interruption."""
    begin, worked = time.monotonic(), 0
    watcher.progressed(0, len(cases), None)
    try:
        for done, result in enumerate(results, start=1):
            if isinstance(result, SegmentedScan):
                record.cases.append(result)
                journal.done(asdict(result))
                watcher.segmented(result)
            elif result.reason is None:
                record.kept.append(result.id)
            else:
                record.refused[result.id] = result.reason
                watcher.refused(result.id, result.reason)
            worked += not (isinstance(result, LeftOut) and result.reason is None)
            pace = (time.monotonic() - begin) / worked if worked else None
            watcher.progressed(done, len(cases), None if pace is None else pace * (len(cases) - done))
        record.complete = True
    finally:
        place = {case.id: number for number, case in enumerate(cases)}
        record.cases.sort(key=lambda scan: place[scan.id])
        record.kept.sort(key=place.__getitem__)
        record.refused = dict(sorted(record.refused.items(), key=lambda refusal: place[refusal[0]]))
        write_file(masks.record_path(), record.text().encode())
        ledger.drop_journals({name for scan in record.cases for name in (Path(scan.mask).name, *scan.maps_sha256)})
        journal.remove()


def attempt(
    case: Case, predictor: Predictor, masks: Masks, watcher: FolderWatcher, journal: Journal | None = None
) -> Result:
    """Segment one scan and say what became of it; the mask is announced in the journal before it is written."""
    try:
        return _segment(case, predictor, masks, watcher, journal)
    except (BadInput, ValueError, RuntimeError, MemoryError) as error:
        return LeftOut(case.id, _reason(case, error))


def _segment(
    case: Case, predictor: Predictor, masks: Masks, watcher: FolderWatcher, journal: Journal | None
) -> SegmentedScan:
    """Read, segment and write one scan."""
    begin = time.perf_counter()
    with watcher.waiting(f"reading {case.id}"):
        hashes = _hashes(case)  # before reading: a scan that changes meanwhile is then segmented again
        source = read_series(case.images[0], files=case.files) if masks.format != "nifti" else read_image(case)
    scan = source.volume if isinstance(source, Series) else source
    predictor.check_plausible(scan, case.images[0])
    with watcher.waiting("preparing the network for this machine (once)"):  # seen where it has to be compiled first
        workload = _workload(predictor, scan)
    available = machine_bytes()
    if available is not None and workload.bound.total > available:
        reason = f"would take {workload.bound.total / 2**20:,.0f} MiB, this machine has {available / 2**20:,.0f}"
        raise BadInput(case.images[0], reason, "check its spacing, or use a larger machine")
    unusual = predictor.unusual(scan)
    with watcher.segmenting(case.id, workload) as show:
        prediction = predictor.predict(scan, progress=show, check=False)
    if journal is not None:
        journal.begin([path.name for path in masks.paths(case)])
    reference = _reference(case, scan, masks, watcher)
    masks.write(case, source, prediction, predictor.labels, predictor.card.codes, reference)
    mask = prediction.mask
    return SegmentedScan(
        id=case.id,
        images=[str(image) for image in case.images],
        images_sha256=list(hashes),
        mask=str(masks.path(case)),
        mask_sha256=file_sha256(masks.path(case)),
        maps_sha256={path.name: file_sha256(path) for path in masks.paths(case)[1:]},
        shape=list(mask.data.shape),
        spacing=list(mask.spacing),
        orientation=mask.orientation,
        windows=workload.windows,
        runtime=predictor.runtime,
        precision=predictor.precision,
        memory_bound_bytes=workload.bound.total,
        memory_parts_bytes=asdict(workload.bound),
        seconds=round(time.perf_counter() - begin, 3),
        millilitres=millilitres(mask, predictor.classes),
        unusual=unusual,
    )


def _reference(case: Case, scan: Volume, masks: Masks, watcher: FolderWatcher) -> Volume | None:
    """Return the mask to draw beside ours; one that cannot be drawn is no reason to lose ours."""
    try:
        return None if masks.preview is None else masks.preview.mask(case, scan)
    except BadInput as error:
        watcher.noted(case.id, f"the picture has no reference, {error}")
        return None


def _hashes(case: Case) -> tuple[str, ...]:
    try:
        return scan_sha256(case.images, case.files)
    except OSError as error:
        path = error.filename or case.images[0]
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None


def _workload(predictor: Predictor, scan: Volume) -> Workload:
    bound, shape = predictor.memory(scan), predictor.scan(scan).shape
    return Workload(predictor.sliding(None).count(shape), bound)


def _reason(case: Case, error: Exception) -> str:
    """Say in one line why a scan was not segmented."""
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return f"{case.images[0]}: there is not enough memory for it; use a smaller --batch or another --device"
    return f"{case.images[0]}: {str(error).splitlines()[0]}; give the kind of scan the model was trained on"
