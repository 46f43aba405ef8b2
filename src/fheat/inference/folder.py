"""Segment every scan of a folder: which masks are kept, which scans are refused, and a record of what was done."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict, TypeVar

from fheat.data.case import Case
from fheat.data.dicom_tree import FoundScans
from fheat.data.inputs import find_scans
from fheat.inference.ledger import Journal, Ledger, Making
from fheat.inference.masks import MAPS, Changed, Masks, Preview, Result
from fheat.inference.overlap import Overlap
from fheat.inference.predictor import MaskFormat, Predictor
from fheat.inference.record import FoundAgain, PredictionRecord, SegmentedScan, new_record
from fheat.inference.runtimes import UnusableRuntime
from fheat.inference.stages import FolderWatcher, Stages
from fheat.system.files import write_file
from fheat.system.signals import finishing


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
    overlap: bool | None


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
    overlap: bool | None = None,
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
        overlap: read the next scans and write those before while one goes through the network; by default on a GPU.

    A mask that exists is kept where the hashes of mask, scan and model and the settings are those that run.json states.
    A file that we did not make, or that was edited since, is never replaced without `overwrite`: its scan is refused.

    A scan that cannot be used is listed in `refused` and the others still run; one that does not look like the training
    scans is segmented, and its record says in what it differs. The record is written to run.json in
    `target`, or run-2.json, ... where that exists, also where the run is interrupted; a single scan that is refused
    leaves nothing behind. A signal that asks to stop does
    so after the scan in work, or within it after `system.signals.GRACE` seconds; masks that are being written behind it
    are waited for. Raises `BadInput` where no scan can be read or a mask would replace a scan, and at the first scan
    where the runtime that was asked for cannot run the network; and `ValueError` for DICOM SEG without DICOM.
    """
    heard = watcher or FolderWatcher()
    maps = tuple(name for name in MAPS if getattr(predictor, name))
    pictures = Preview() if preview is True else preview or None
    masks = Masks(Path(target), mask_format, overwrite=overwrite, preview=pictures, changed=changed, maps=maps)
    found = find_scans(source, series, pattern)
    cases = found.cases
    with masks.prepared(source, cases):
        record = new_record(predictor, source)
        record.command = command
        tell_skipped(record, found, heard)
        ledger, journal = Ledger(masks.folder), record.journal(masks.folder)
        stages = Stages(predictor, masks, heard, journal, _to_come(cases, masks))
        with _results(cases, stages, ledger, record.making, overlap) as (made, left):
            fill_record(record, cases, masks, made, heard, ledger, journal, left)
    return record


def _to_come(cases: Sequence[Case], masks: Masks) -> dict[str, int]:
    """Return about how many scans will be segmented after each one, by its name: those that have no mask yet."""
    found, behind = {}, 0
    for case in reversed(cases):
        found[case.id] = behind
        behind += masks.overwrite or not masks.path(case).exists()
    return found


Left = Callable[[], Iterable[Result]]
"""A function that yields the results of scans that are still being written when a run is interrupted."""


@contextmanager
def _results(
    cases: Sequence[Case], stages: Stages, ledger: Ledger, making: Making, overlap: bool | None
) -> Iterator[tuple[Iterable[Result], Left]]:
    """Yield what yields the results of scans that overlap, or that come one after the other."""

    def earlier(case: Case) -> Result | None:
        done = stages.masks.earlier(case, ledger, making)
        return done if stages.journal is None else entered(done, stages.journal)

    def in_turn() -> Generator[Result, None, None]:
        for case in cases:
            with finishing():  # until the result is entered, which is when the next one is asked for
                yield earlier(case) or stages.all(case)

    if overlap is None:
        overlap = stages.predictor.device.type != "cpu"
    if overlap and len(cases) > 1:
        with Overlap(stages, earlier) as overlapping, closing(overlapping.results(cases)) as made:
            yield made, overlapping.left
    else:
        with closing(in_turn()) as made:
            yield made, tuple


Entered = TypeVar("Entered", bound=Result | None)


def entered(result: Entered, journal: Journal) -> Entered:
    """Return a result after entering its mask, if it has one, in the journal."""
    if isinstance(result, SegmentedScan):
        journal.done(asdict(result))
    return result


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
    left: Left = tuple,
) -> None:
    """Enter what became of each case, in the order of the cases, and write the record, also after an interruption.

    The journal has all masks of `results` already. After an interruption, `left` yields those that are still written.
    Where the runtime cannot run the network and nothing was done, there is no record.
    """
    begin, ran, wanted = time.monotonic(), 0, True
    watcher.progressed(0, len(cases), None)
    try:
        for done, result in enumerate(results, start=1):
            _enter(record, result, watcher)
            ran += isinstance(result, SegmentedScan) and not isinstance(result, FoundAgain)
            pace = (time.monotonic() - begin) / ran if ran else None  # of what did not run none can be told
            watcher.progressed(done, len(cases), None if pace is None else pace * (len(cases) - done))
        record.complete = True
    except UnusableRuntime:
        wanted = record.scans > 0
        raise
    finally:
        written = True
        try:
            for result in left():
                _enter(record, result, watcher)
        except BaseException as error:
            written = isinstance(error, Exception)  # else nobody waits for the mask, which only the journal will have
            raise
        finally:
            if wanted:
                _write_record(record, cases, masks, ledger)
            if written:
                journal.remove()


def _enter(record: PredictionRecord, result: Result, watcher: FolderWatcher) -> None:
    if isinstance(result, SegmentedScan):
        record.cases.append(result)
        watcher.segmented(result)
    elif result.reason is None:
        record.kept.append(result.id)
    else:
        record.refused[result.id] = result.reason
        watcher.refused(result.id, result.reason)


def _write_record(record: PredictionRecord, cases: Sequence[Case], masks: Masks, ledger: Ledger) -> None:
    place = {case.id: number for number, case in enumerate(cases)}
    record.cases.sort(key=lambda scan: place[scan.id])
    record.kept.sort(key=place.__getitem__)
    record.refused = dict(sorted(record.refused.items(), key=lambda refusal: place[refusal[0]]))
    if not (record.complete and len(cases) == len(record.refused) == 1):  # the one who asks is told, and that is all
        write_file(masks.record_path(), record.text().encode())
    ledger.drop_journals({name for scan in record.cases for name in (Path(scan.mask).name, *scan.maps_sha256)})
