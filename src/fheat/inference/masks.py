"""The files of a folder of masks: their names, which older ones may be kept or replaced, and how they are written."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Literal

from fheat.data.case import Case
from fheat.inference.ledger import Ledger, Making, scan_sha256
from fheat.inference.postprocessing import Prediction
from fheat.inference.predictor import MaskFormat
from fheat.inference.record import FoundAgain, SegmentedScan
from fheat.io import read_volume
from fheat.io.codes import SegmentCode
from fheat.io.dicom import Series
from fheat.io.dicom_seg import write_dicom_seg
from fheat.io.nifti import write_nifti
from fheat.io.rtstruct import write_rtstruct
from fheat.io.volume import Volume, grid_difference
from fheat.system.errors import BadInput
from fheat.system.files import check_folder, write_file

ENDINGS: Final[dict[MaskFormat, str]] = {"nifti": ".nii.gz", "seg": ".dcm", "rtstruct": "_rtstruct.dcm"}
"""How the file of a mask ends."""
MAPS: Final = ("probabilities", "uncertainty")
"""Maps that may be written beside a mask; each name is an attribute of `Predictor` and of `Prediction`."""
_PREVIEW: Final = "fheat.figures.preview"
_DRAWING: Final = Lock()
"""Held while a picture is drawn: matplotlib's figures belong to one thread at a time, and take memory."""
Changed = Literal["recompute", "refuse"]
"""Treatment of a scan that has a mask of ours of another scan, model or setting: it gets a new mask, or none."""


@dataclass(frozen=True)
class Preview:
    """How the picture of each mask is drawn."""

    reference: Path | None = None
    """Folder with reference masks, named as the masks are; or a path with `{id}` for the name of a scan; or the one
    file. Their contours are drawn in dashes."""
    window: tuple[float, float] = (1.0, 99.0)
    """Percentiles of the intensities that are shown black and white."""

    @property
    def bytes_per_voxel(self) -> int:
        """Bytes that drawing takes for a moment for each voxel of a scan: copies of mask and scan, and the reference as
        float32 with a copy."""
        return 3 if self.reference is None else 10

    def __post_init__(self) -> None:
        if not 0 <= self.window[0] < self.window[1] <= 100:
            raise ValueError(f"window={self.window} is no pair of percentiles: use 0 <= low < high <= 100")

    def file(self, case: Case) -> Path | None:
        """Return the file of the reference of a scan, or None if there is none."""
        if self.reference is None or self.reference.is_file():
            return self.reference
        if "{id}" in str(self.reference):
            names = [Path(str(self.reference).replace("{id}", case.id))]
        else:
            names = [self.reference / f"{case.id}{ending}" for ending in (".nii.gz", ".nii", ".nrrd")]
        return next((name for name in names if name.is_file()), None)

    def mask(self, case: Case, scan: Volume) -> Volume | None:
        """Return the reference of a scan, or None if there is none; `BadInput` if it lies on another grid."""
        file = self.file(case)
        if file is None:
            return None
        found = read_volume(file)
        if found.data.ndim != 3:
            raise BadInput(file, f"has shape {found.data.shape}: a mask is (X, Y, Z)", "give a mask")
        if difference := grid_difference(scan, found):
            reason = f"field {difference.field} is {difference.second}, that of the scan {difference.first}"
            raise BadInput(file, reason, "give the reference of this scan")
        return found


@dataclass(frozen=True)
class LeftOut:
    """A scan that was not segmented: refused for a reason, or kept, without one, because it had its mask already."""

    id: str
    reason: str | None = None


Result = SegmentedScan | LeftOut
"""Outcome for a scan: it was segmented, or left out."""


@dataclass(frozen=True)
class Masks:
    """Where masks, previews and the record are written, and whether they may replace older ones."""

    folder: Path
    format: MaskFormat
    overwrite: bool
    preview: Preview | None
    changed: Changed = "recompute"
    maps: tuple[str, ...] = ()
    """Which of `MAPS` are written beside each mask."""

    def paths(self, case: Case) -> list[Path]:
        """Return the file of the mask of a scan and those of its maps."""
        return [self.path(case), *(self.folder / f"{case.id}_{name}.nii.gz" for name in self.maps)]

    def path(self, case: Case) -> Path:
        """Return the file of the mask of a scan."""
        return self.folder / f"{case.id}{ENDINGS[self.format]}"

    def earlier(self, case: Case, ledger: Ledger, making: Making) -> Result | None:
        """Return what an earlier run, or a file in the place of the mask, make of a scan; None if it is still to do.

        What a run did that was killed before it wrote a record is an entry of this one.
        """
        if self.overwrite:
            return None
        images = cache(partial(scan_sha256, case.images, case.files))
        try:
            found = {path: ledger.standing(path, images, making) for path in self.paths(case)}
        except (BadInput, OSError):  # of a scan that cannot be read, which is refused with its reason
            return None
        for path, (standing, _) in found.items():
            what = "mask" if path == self.path(case) else "map"
            if standing == "foreign":
                reason = f"exists already, and is no {what} of this program or was changed since"
                remedy = "move it, choose another folder, or add --overwrite"
                return LeftOut(case.id, str(BadInput(path, reason, remedy)))
            if standing == "changed" and self.changed == "refuse":
                reason = "was made of another scan, or with another model or other settings"
                return LeftOut(case.id, str(BadInput(path, reason, "leave out --changed refuse, or move it")))
        mask, (_, made) = next(iter(found.items()))
        if any(standing != "same" for standing, _ in found.values()) or made is None:
            return None
        return LeftOut(case.id) if made.entry is None else FoundAgain.of(made.entry, case, mask)

    @contextmanager
    def prepared(self, source: str | Path, cases: Sequence[Case]) -> Iterator[None]:
        """Refuse before the first scan what would fail after it, and create the folder for the body.

        A folder that was created and that the body left empty is removed again.
        """
        check_folder(self.folder)
        self._check(source, cases)
        missing = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            with suppress(OSError):  # something is there
                for folder in missing:
                    folder.rmdir()

    def _check(self, source: str | Path, cases: Sequence[Case]) -> None:
        named: dict[str, Case] = {}
        for case in cases:
            other = named.setdefault(case.id, case)
            if other is not case:
                files = f"{other.images[0]} and {case.images[0]}"
                raise BadInput(
                    source, f"has two scans named {case.id}, {files}", "rename one: their masks would collide"
                )
        if self.preview is not None and self.preview.reference is not None and not any(map(self.preview.file, cases)):
            reason = f"has no reference of any scan, such as {cases[0].id}"
            remedy = "give the folder of the reference masks, or their path with {id} for the name of a scan"
            raise BadInput(self.preview.reference, reason, remedy)
        if self.format != "nifti" and not all(case.images[0].is_dir() for case in cases):
            kind = "DICOM SEG" if self.format == "seg" else "RTSTRUCT"
            raise ValueError(
                f"{kind} refers to a DICOM series: give a DICOM folder, or leave out --format {self.format}"
            )
        inputs = {os.path.realpath(image) for case in cases for image in case.images}
        written: dict[Path, Case] = {}
        for case in cases:
            for path in self.paths(case):
                if os.path.realpath(path) in inputs:
                    raise BadInput(path, "is a scan itself", "choose another folder for the masks")
                other = written.setdefault(path, case)
                if other is not case:
                    reason = f"has scans named {other.id} and {case.id}, which would both write {path.name}"
                    raise BadInput(source, reason, "rename one")

    def record_path(self) -> Path:
        """Return run.json, or the first of run-2.json, run-3.json, ... that does not exist."""
        names = chain(["run.json"], (f"run-{number}.json" for number in count(2)))
        return next(self.folder / name for name in names if not (self.folder / name).exists())

    def get_ready(self) -> None:
        """Import what draws pictures in a thread that nobody waits for, as that takes a fifth of a second.

        What fails here fails again, and is told, where a picture is drawn.
        """

        def load() -> None:
            with suppress(Exception):
                import_module(_PREVIEW)

        if self.preview is not None and _PREVIEW not in sys.modules:
            Thread(target=load, name="importing", daemon=True).start()

    def write(
        self,
        case: Case,
        source: Volume | Series,
        prediction: Prediction,
        labels: Sequence[str],
        codes: Mapping[int, SegmentCode],
        reference: Volume | None = None,
    ) -> None:
        """Write the preview, the maps and then the mask, whose presence says that the scan is done."""
        try:
            if self.preview is not None:
                from fheat.figures.preview import preview_png  # brings matplotlib

                scan = source.volume if isinstance(source, Series) else source
                window = self.preview.window
                with _DRAWING:
                    png = preview_png(scan, prediction.mask, labels, reference=reference, window=window)
                write_file(self.folder / f"{case.id}.png", png)
            for name, path in zip(self.maps, self.paths(case)[1:], strict=True):
                write_nifti(getattr(prediction, name), path)
            if isinstance(source, Series) and self.format != "nifti":
                write = write_dicom_seg if self.format == "seg" else write_rtstruct
                write(prediction.mask, source, self.path(case), ("background", *labels), codes=codes)
            else:
                write_nifti(prediction.mask, self.path(case))
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise BadInput(case.images[0], "its name is too long for a mask beside it", "rename it") from None
