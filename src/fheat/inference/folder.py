"""Segment every scan of a folder: which masks are kept, which scans are refused, and a record of what was done."""

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fheat import __version__
from fheat.data.appearance import Unusual
from fheat.data.case import Case
from fheat.data.inputs import scans_at
from fheat.data.read import read_image
from fheat.inference.memory import MemoryBound, machine_bytes
from fheat.inference.predictor import MaskFormat, Predictor
from fheat.io import read_series
from fheat.io.dicom import Series
from fheat.io.dicom_seg import write_dicom_seg
from fheat.io.nifti import write_nifti
from fheat.io.volume import Volume
from fheat.models.folder import WEIGHTS, read_manifest
from fheat.models.zoo import find_folder
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.system.progress import Progress, silent


@dataclass(frozen=True)
class Workload:
    """What segmenting one scan will take, known before it starts."""

    windows: int
    """Number of windows."""
    unseen: float
    """Share of the voxels that no window covers."""
    bound: MemoryBound


@dataclass(frozen=True)
class SegmentedScan:
    """What `run.json` says of one scan that has a mask."""

    id: str
    images: list[str]
    mask: str
    shape: list[int]
    spacing: list[float]
    orientation: str
    windows: int
    unseen: float
    runtime: str
    precision: str
    memory_bound_bytes: int
    memory_parts_bytes: dict[str, int]
    seconds: float
    millilitres: dict[str, float]
    unusual: list[Unusual]
    """In what the scan differs from the training scans of the model, the greatest difference first."""


@dataclass
class PredictionRecord:
    """What `run.json` says: the model, the settings, and what became of every scan."""

    model: str
    weights_sha256: str | None
    """Hash of the weight file, or of each of several; None for a network that was not loaded from a folder."""
    input: str
    settings: dict[str, Any]
    versions: dict[str, str]
    device: str
    complete: bool = False
    """Whether the run came to its end; an interrupted one lists what it had done."""
    cases: list[SegmentedScan] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Scans that had a mask already."""
    refused: dict[str, str] = field(default_factory=dict)
    """Scans that were not segmented, each with the reason in one line."""

    @property
    def scans(self) -> int:
        """Number of scans that were looked at."""
        return len(self.cases) + len(self.kept) + len(self.refused)

    def text(self) -> str:
        """Return the JSON."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1) + "\n"


@dataclass(frozen=True)
class LeftOut:
    """A scan that was not segmented: refused for a reason, or kept, without one, because it had a mask already."""

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
    watcher: FolderWatcher | None = None,
) -> PredictionRecord:
    """Write a mask for every scan, in the scan's own place, and return the record of what was done.

    Args:
        predictor: what segments a scan.
        source: a scan, a folder of scans, a DICOM series, a folder of series, or a dataset; see `data.inputs.scans_at`.
        target: folder for the masks, created if needed.
        mask_format: `nifti` writes ID.nii.gz, `seg` DICOM SEG (ID.dcm) for DICOM series.
        preview: write ID.png, a picture of the mask's contour on three planes, too.
        overwrite: replace masks that exist, instead of keeping them.
        watcher: hears what becomes of each scan.

    A scan that cannot be used is listed in `refused` and the others still run; one that does not look like the training
    scans is segmented, and its record says in what it differs. The record is written to run.json in
    `target`, or run-2.json, ... where that exists, also where the run is interrupted. Raises `BadInput` where no scan
    can be read or a mask would replace a scan, and `ValueError` for DICOM SEG without DICOM.
    """
    heard = watcher or FolderWatcher()
    masks = Masks(Path(target), mask_format, overwrite=overwrite, preview=preview)
    cases = scans_at(source)
    masks.check(source, cases)
    record = new_record(predictor, source)
    fill_record(record, cases, masks, (attempt(case, predictor, masks, heard) for case in cases), heard)
    return record


def fill_record(
    record: PredictionRecord,
    cases: Sequence[Case],
    masks: "Masks",
    results: Iterable[Result],
    watcher: FolderWatcher,
) -> None:
    """Enter what became of each case, in the order of the cases, and write the record, also after an interruption."""
    try:
        for result in results:
            if isinstance(result, SegmentedScan):
                record.cases.append(result)
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


@dataclass(frozen=True)
class Masks:
    """Where masks, previews and the record are written, and whether they may replace older ones."""

    folder: Path
    format: MaskFormat
    overwrite: bool
    preview: bool

    def path(self, case: Case) -> Path:
        """Return the file of the mask of a scan."""
        return self.folder / f"{case.id}{'.dcm' if self.format == 'seg' else '.nii.gz'}"

    def keeps(self, case: Case) -> bool:
        """Return whether the scan has a mask that is not replaced."""
        return not self.overwrite and self.path(case).exists()

    def check(self, source: str | Path, cases: Sequence[Case]) -> None:
        """Refuse before the first scan what would fail after it, then create the folder."""
        names = [case.id for case in cases]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(source, f"has two scans named {twice}", "rename one; their masks would collide")
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
        return next(self.folder / name for name in names if self.overwrite or not (self.folder / name).exists())

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


def attempt(case: Case, predictor: Predictor, masks: Masks, watcher: FolderWatcher) -> Result:
    """Segment one scan, unless its mask is kept, and say what became of it."""
    if masks.keeps(case):
        return LeftOut(case.id)
    try:
        return _segment(case, predictor, masks, watcher)
    except (BadInput, ValueError, RuntimeError, MemoryError) as error:
        return LeftOut(case.id, _reason(case, error))


def _segment(case: Case, predictor: Predictor, masks: Masks, watcher: FolderWatcher) -> SegmentedScan:
    """Read, segment and write one scan."""
    begin = time.perf_counter()
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
    masks.write(case, source, mask, predictor.labels)
    return SegmentedScan(
        id=case.id,
        images=[str(image) for image in case.images],
        mask=str(masks.path(case)),
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


def new_record(predictor: Predictor, source: str | Path) -> PredictionRecord:
    """Return the record of a run that has not segmented anything yet."""
    hashes = [read_manifest(find_folder(source)).sha256[WEIGHTS] for source in predictor.sources]
    return PredictionRecord(
        model=", ".join(map(str, predictor.sources)) or type(predictor.network).__name__,
        weights_sha256=", ".join(hashes) or None,
        input=str(source),
        settings={
            "window": predictor.windows.size,
            "stride": predictor.windows.stride,
            "thinned": predictor.windows.thinned,
            "weights": predictor.weights,
            "flips": predictor.flips,
            "largest_component": predictor.largest_component,
            "allow": predictor.allow,
        },
        versions={"fheat": __version__, "torch": torch.__version__, "numpy": np.__version__},
        device=str(predictor.device),
    )
