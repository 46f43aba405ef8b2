"""Segment every scan of a folder: which masks are kept, which scans are refused, and a record of what was done."""

import errno
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fheat.data.case import Case
from fheat.data.inputs import scans_at
from fheat.data.read import read_image
from fheat.inference.ledger import Journal, Ledger, Making, file_sha256, scan_sha256
from fheat.inference.memory import MemoryBound, machine_bytes
from fheat.inference.predictor import MaskFormat, Predictor
from fheat.inference.record import PredictionRecord, SegmentedScan, new_record
from fheat.io import read_series
from fheat.io.dicom import Series
from fheat.io.dicom_seg import write_dicom_seg
from fheat.io.nifti import write_nifti
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.system.progress import Progress, silent
from fheat.system.signals import finishing

Changed = Literal["recompute", "refuse"]
"""What to do with a scan that has a mask of ours of another scan, model or setting: a new mask, or none."""


@dataclass(frozen=True)
class Workload:
    """What segmenting one scan will take, known before it starts."""

    windows: int
    """Number of windows."""
    unseen: float
    """Share of the voxels that no window covers."""
    bound: MemoryBound


@dataclass(frozen=True)
class LeftOut:
    """A scan that was not segmented: refused for a reason, or kept, without one, because it had its mask already."""

    id: str
    reason: str | None = None


Result = SegmentedScan | LeftOut
"""What becomes of a scan."""


class FolderWatcher:
    """Hears what becomes of each scan of a folder while it happens; every method does nothing here."""

    def segmenting(self, case: str, workload: Workload) -> AbstractContextManager[Progress]:
        """Return a context in which the scan is segmented; its value is told how many windows are done."""
        return _unwatched()

    def segmented(self, scan: SegmentedScan) -> None:
        """Hear that a mask is written, and in what the scan is unlike the training scans of the model."""

    def refused(self, case: str, reason: str) -> None:
        """Hear that a scan is not segmented."""


@contextmanager
def _unwatched() -> Iterator[Progress]:
    yield silent


def predict_folder(
    predictor: Predictor,
    source: str | Path,
    target: str | Path,
    *,
    mask_format: MaskFormat = "nifti",
    preview: bool = True,
    overwrite: bool = False,
    changed: Changed = "recompute",
    watcher: FolderWatcher | None = None,
) -> PredictionRecord:
    """Write a mask for every scan, in the scan's own place, and return the record of what was done.

    Args:
        predictor: what segments a scan.
        source: a scan, a folder of scans, a DICOM series, a folder of series, or a dataset; see `data.inputs.scans_at`.
        target: folder for the masks, created if needed.
        mask_format: `nifti` writes ID.nii.gz, `seg` DICOM SEG (ID.dcm) for DICOM series.
        preview: write ID.png, a picture of the mask's contour on three planes, too.
        overwrite: replace masks that exist, whoever made them.
        changed: what to do with a scan that has a mask of ours of another scan, model or setting.
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
    masks = Masks(Path(target), mask_format, overwrite=overwrite, preview=preview, changed=changed)
    cases = scans_at(source)
    masks.check(source, cases)
    record = new_record(predictor, source)
    ledger, journal = Ledger(masks.folder), record.journal(masks.folder)

    def results() -> Generator[Result, None, None]:
        for case in cases:
            with finishing():  # until the result is entered, which is when the next one is asked for
                done = masks.earlier(case, ledger, record.making)
                yield done or attempt(case, predictor, masks, heard, journal)

    with closing(results()) as found:
        fill_record(record, cases, masks, found, heard, ledger, journal)
    return record


def fill_record(
    record: PredictionRecord,
    cases: Sequence[Case],
    masks: "Masks",
    results: Iterable[Result],
    watcher: FolderWatcher,
    ledger: Ledger,
    journal: Journal,
) -> None:
    """Enter what became of each case, in the order of the cases, and write the record, also after an interruption."""
    try:
        for result in results:
            if isinstance(result, SegmentedScan):
                record.cases.append(result)
                journal.done(asdict(result))
                watcher.segmented(result)
            elif result.reason is None:
                record.kept.append(result.id)
            else:
                record.refused[result.id] = result.reason
                watcher.refused(result.id, result.reason)
        record.complete = True
    finally:
        place = {case.id: number for number, case in enumerate(cases)}
        record.cases.sort(key=lambda scan: place[scan.id])
        record.kept.sort(key=place.__getitem__)
        record.refused = dict(sorted(record.refused.items(), key=lambda refusal: place[refusal[0]]))
        write_file(masks.record_path(), record.text().encode())
        ledger.drop_journals({Path(scan.mask).name for scan in record.cases})
        journal.remove()


@dataclass(frozen=True)
class Masks:
    """Where masks, previews and the record are written, and whether they may replace older ones."""

    folder: Path
    format: MaskFormat
    overwrite: bool
    preview: bool
    changed: Changed = "recompute"

    def path(self, case: Case) -> Path:
        """Return the file of the mask of a scan."""
        return self.folder / f"{case.id}{'.dcm' if self.format == 'seg' else '.nii.gz'}"

    def earlier(self, case: Case, ledger: Ledger, making: Making) -> Result | None:
        """Return what an earlier run, or a file in the place of the mask, make of a scan; None if it is still to do.

        What a run did that was killed before it wrote a record is an entry of this one.
        """
        if self.overwrite:
            return None
        mask = self.path(case)
        try:
            standing, made = ledger.standing(mask, partial(scan_sha256, case.images), making)
        except (BadInput, OSError):  # of a scan that cannot be read, which is refused with its reason
            return None
        if standing == "foreign":
            reason = "exists already, and is no mask of this program or was changed since"
            return LeftOut(case.id, str(BadInput(mask, reason, "move it, choose another folder, or add --overwrite")))
        if standing == "changed" and self.changed == "refuse":
            reason = "was made of another scan, or with another model or other settings"
            return LeftOut(case.id, str(BadInput(mask, reason, "leave out --changed refuse, or move it")))
        if standing != "same" or made is None:
            return None
        return LeftOut(case.id) if made.entry is None else SegmentedScan.again(made.entry, case, mask)

    def check(self, source: str | Path, cases: Sequence[Case]) -> None:
        """Refuse before the first scan what would fail after it, then create the folder."""
        named: dict[str, Case] = {}
        for case in cases:
            other = named.setdefault(case.id, case)
            if other is not case:
                files = f"{other.images[0]} and {case.images[0]}"
                raise BadInput(
                    source, f"has two scans named {case.id}, {files}", "rename one: their masks would collide"
                )
        if self.format == "seg" and not all(case.images[0].is_dir() for case in cases):
            raise ValueError("DICOM SEG refers to a DICOM series: give a DICOM folder, or leave out --format seg")
        inputs = {os.path.realpath(image) for case in cases for image in case.images}
        for case in cases:
            if os.path.realpath(self.path(case)) in inputs:
                raise BadInput(self.path(case), "is a scan itself", "choose another folder for the masks")
        self.folder.mkdir(parents=True, exist_ok=True)

    def record_path(self) -> Path:
        """Return run.json, or the first of run-2.json, run-3.json, ... that does not exist."""
        names = chain(["run.json"], (f"run-{number}.json" for number in count(2)))
        return next(self.folder / name for name in names if not (self.folder / name).exists())

    def write(self, case: Case, source: Volume | Series, mask: Volume, labels: Sequence[str]) -> None:
        """Write the preview and then the mask, whose presence says that the scan is done."""
        try:
            if self.preview:
                from fheat.figures.preview import preview_png  # brings matplotlib

                scan = source.volume if isinstance(source, Series) else source
                write_file(self.folder / f"{case.id}.png", preview_png(scan, mask, labels))
            if isinstance(source, Series) and self.format == "seg":
                write_dicom_seg(mask, source, self.path(case), ("background", *labels))
            else:
                write_nifti(mask, self.path(case))
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise BadInput(case.images[0], "its name is too long for a mask beside it", "rename it") from None


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
    hashes = _hashes(case)  # before reading: a scan that changes meanwhile is then segmented again
    source = read_series(case.images[0]) if masks.format == "seg" else read_image(case)
    scan = source.volume if isinstance(source, Series) else source
    predictor.check_plausible(scan, case.images[0])
    workload = _workload(predictor, scan)
    available = machine_bytes()
    if available is not None and workload.bound.total > available:
        reason = f"would take {workload.bound.total / 2**20:,.0f} MiB, this machine has {available / 2**20:,.0f}"
        raise BadInput(case.images[0], reason, "check its spacing, or use a larger machine")
    unusual = predictor.unusual(scan)
    with watcher.segmenting(case.id, workload) as show:
        mask = predictor.segment(scan, progress=show, check=False)
    if journal is not None:
        journal.begin([masks.path(case).name])
    masks.write(case, source, mask, predictor.labels)
    return SegmentedScan(
        id=case.id,
        images=[str(image) for image in case.images],
        images_sha256=list(hashes),
        mask=str(masks.path(case)),
        mask_sha256=file_sha256(masks.path(case)),
        shape=list(mask.data.shape),
        spacing=list(mask.spacing),
        orientation=mask.orientation,
        windows=workload.windows,
        unseen=round(workload.unseen, 4),
        runtime=predictor.runtime,
        precision=predictor.precision,
        memory_bound_bytes=workload.bound.total,
        memory_parts_bytes=asdict(workload.bound),
        seconds=round(time.perf_counter() - begin, 3),
        millilitres=_millilitres(mask, predictor.classes),
        unusual=unusual,
    )


def _hashes(case: Case) -> tuple[str, ...]:
    try:
        return scan_sha256(case.images)
    except OSError as error:
        path = error.filename or case.images[0]
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None


def _workload(predictor: Predictor, scan: Volume) -> Workload:
    bound, shape = predictor.memory(scan), predictor.scan(scan).shape
    return Workload(predictor.sliding(None).count(shape), predictor.windows.unseen(shape), bound)


def _reason(case: Case, error: Exception) -> str:
    """Say in one line why a scan was not segmented."""
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return f"{case.images[0]}: there is not enough memory for it; use a smaller --batch or another --device"
    return f"{case.images[0]}: {str(error).splitlines()[0]}; give the kind of scan the model was trained on"


def _millilitres(mask: Volume, classes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the volume of each class, which is that of all its label values."""
    from fheat.figures.preview import label_counts  # brings matplotlib

    voxel = abs(float(np.linalg.det(mask.affine[:3, :3]))) / 1000
    counts = label_counts(mask.data)
    return {name: round(int(counts[list(values)].sum()) * voxel, 3) for name, values in classes.items()}
