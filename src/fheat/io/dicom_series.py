"""Which DICOM series a folder holds, from the headers of its files alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fheat.io.content import SIZE_LIMIT
from fheat.io.dicom import DEFLATED, dicom_files, meta_information, one_line, refusing, require
from fheat.system.errors import BadInput
from fheat.system.files import open_regular

if TYPE_CHECKING:
    from pydicom import Dataset

_HEAD: Final = 16 * 2**20
"""Number of bytes of a file within which the fields of a series must lie; a single slice has fewer in all."""
_FIELDS: Final = (
    *("SOPClassUID", "ImageType", "Modality", "SeriesDescription", "SeriesInstanceUID", "SeriesNumber", "PatientID"),
    *("ReferencedSeriesSequence", "SegmentSequence"),
)
_LONGEST: Final = 200
"""Largest number of characters of a field."""


@dataclass(frozen=True)
class SegFacts:
    """One DICOM SEG."""

    file: str
    """Name of the file."""
    series: str
    """SeriesInstanceUID of the series that it was drawn on; empty where it names none or several."""
    names: tuple[tuple[int, str], ...]
    """Number and label of each segment."""


@dataclass(frozen=True)
class SeriesFacts:
    """One series of a folder."""

    uid: str
    """The field SeriesInstanceUID; empty where the files lack it."""
    kind: str
    """Name of the storage class, such as `CT Image Storage` or `RT Structure Set Storage`."""
    modality: str
    description: str
    number: int | None
    """The field SeriesNumber."""
    localiser: bool
    """Whether every file says that it is a localiser, which scanners take to plan a scan."""
    files: tuple[str, ...]
    """Names of the files, sorted."""
    damaged: bool = False
    """Whether these are the files of the folder that cannot be read, which might belong to any series."""
    fault: str = ""
    """Why the first of the damaged files cannot be read."""
    patient: str = ""
    """The field PatientID; empty where an anonymiser has removed it."""
    segmentations: tuple[SegFacts, ...] = ()

    @property
    def not_a_scan(self) -> str | None:
        """Why the series cannot be meant as a scan, or None. A secondary capture is a screenshot, as a rule."""
        if "Image Storage" not in self.kind:
            return f"{self.kind or 'of an unknown kind'}, not a scan"
        if self.localiser:
            return "a localiser, not a scan"
        return "a secondary capture, not a scan" if "Secondary Capture" in self.kind else None

    def named(self, name: str) -> bool:
        """Return whether this is the UID or, in capitals or not, the description of the series."""
        return name in (self.uid, self.description) or name.strip().casefold() == self.description.strip().casefold()


def parse_series(folder: str | Path, *, limit: int = SIZE_LIMIT) -> tuple[SeriesFacts, ...]:
    """Return the series of a folder in the order of their UIDs; files that cannot be read are the last one, `damaged`.

    Hidden files, a DICOMDIR, files that are not DICOM and subfolders are ignored, as in `read_dicom`. Raises `BadInput`
    if nothing is left.
    """
    path = Path(folder)
    require("pydicom", path)
    headers: dict[str, dict[str, Dataset]] = {}
    damaged: dict[str, str] = {}
    for file in dicom_files(path, named=True):
        try:
            with refusing(file):
                header = _head(file, limit)
                headers.setdefault(str(header.get("SeriesInstanceUID") or ""), {})[file.name] = header
        except BadInput as error:  # the folder is refused when it is read
            damaged[file.name] = _text(error.reason)
    first = min(damaged.items(), default=("", ""))[1]
    lost = SeriesFacts("", "", "", "", None, localiser=False, files=tuple(sorted(damaged)), damaged=True, fault=first)
    return (*(_facts(uid, headers[uid]) for uid in sorted(headers)), *([lost] if damaged else []))


def checked_series(answer: Iterable[dict[str, Any]]) -> tuple[SeriesFacts, ...]:
    """Return the series that another process listed, or raise `ValueError` or similar if that makes no sense."""
    found = tuple(
        SeriesFacts(
            **{**one, "files": tuple(one["files"]), "segmentations": _checked_segs(one.get("segmentations", ()))}
        )
        for one in answer
    )
    for one in found:
        texts = [one.uid, one.kind, one.modality, one.description, one.fault, one.patient]
        texts += [text for seg in one.segmentations for text in (seg.series, *(name for _, name in seg.names))]
        if not all(isinstance(text, str) and text.isprintable() and len(text) <= _LONGEST for text in texts):
            raise ValueError("a text of the series")
        if not all(isinstance(flag, bool) for flag in (one.localiser, one.damaged)) or not (
            one.number is None or type(one.number) is int
        ):
            raise ValueError("a number of the series")
        if not one.files or not all(isinstance(name, str) and Path(name).name == name for name in one.files):
            raise ValueError("the files of the series")
        if not all(seg.file in one.files for seg in one.segmentations):
            raise ValueError("the files of the segmentations")
    return found


def _checked_segs(answer: Iterable[dict[str, Any]]) -> tuple[SegFacts, ...]:
    return tuple(
        SegFacts(str(one["file"]), one["series"], tuple((int(number), name) for number, name in one["names"]))
        for one in answer
    )


def _head(file: Path, limit: int) -> "Dataset":
    import pydicom

    if file.stat().st_size > limit:
        raise BadInput(file, f"has over {limit:,} bytes", "raise the limit if it is meant")
    if meta_information(file).get("TransferSyntaxUID") == DEFLATED:  # it is unpacked as a whole, however large it is
        raise BadInput(file, "is deflated", "convert the series to Explicit VR Little Endian")
    with open_regular(file) as stream:
        content = stream.read(_HEAD)  # from memory: a damaged length field then asks for no more than there is
    return pydicom.dcmread(BytesIO(content), stop_before_pixels=True, specific_tags=list(_FIELDS))


def _facts(uid: str, headers: dict[str, "Dataset"]) -> SeriesFacts:
    import pydicom

    first = next(iter(headers.values()))
    with refusing(Path(next(iter(headers)))):
        number = first.get("SeriesNumber")
        return SeriesFacts(
            uid=_text(uid),
            kind=_text(pydicom.uid.UID(first.get("SOPClassUID") or "").name),
            modality=_text(first.get("Modality")),
            description=_text(first.get("SeriesDescription")),
            number=None if number is None else int(number),
            localiser=all("LOCALIZER" in [str(part).upper() for part in _values(one)] for one in headers.values()),
            files=tuple(sorted(headers)),
            patient=_text(first.get("PatientID")),
            segmentations=tuple(_seg(name, one) for name, one in headers.items() if one.get("Modality") == "SEG"),
        )


def _seg(name: str, header: "Dataset") -> SegFacts:
    referenced = header.get("ReferencedSeriesSequence") or []
    series = _text(referenced[0].get("SeriesInstanceUID")) if len(referenced) == 1 else ""
    segments = header.get("SegmentSequence") or []
    return SegFacts(name, series, tuple((int(one.SegmentNumber), _text(one.get("SegmentLabel"))) for one in segments))


def _values(header: "Dataset") -> list[Any]:
    kinds = header.get("ImageType")
    return [] if kinds is None else [kinds] if isinstance(kinds, str) else list(kinds)


def _text(value: object) -> str:
    text = "" if value is None else one_line(value) if str(value).strip() else ""
    return "".join(one if one.isprintable() else " " for one in text)[:_LONGEST]
