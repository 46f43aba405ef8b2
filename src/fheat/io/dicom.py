"""Reading a DICOM series, a folder of single-frame images, as one volume.

The grid is computed from the positions of the slices alone, never from file names or instance numbers. A slice that is
missing, present twice or out of line is an error that names the files; the volume is never stretched instead. DICOM
has no checksum, so a flipped bit in the pixels cannot be noticed; every number of the header that the geometry depends
on is checked.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from fheat.io.content import COPY_AGAIN, SIZE_LIMIT
from fheat.io.volume import Volume, geometry_fault
from fheat.system.errors import BadInput
from fheat.system.files import open_regular, read_capped

if TYPE_CHECKING:
    from pydicom import Dataset

LPS_TO_RAS: Final = np.diag([-1.0, -1.0, 1.0, 1.0])
"""Affine from DICOM's coordinates (left, posterior, superior) to those of `Volume` (right, anterior, superior)."""
_LARGEST_NUMBER: Final = 1e9
"""Upper limit of the absolute value of a number in a header."""
_ANGLE: Final = 2e-3
"""Sine of the largest angle that counts as rounding, 0.11 degrees; a tilted gantry has more."""
_GAP: Final = 0.01
"""Tolerance of slice distances, as a fraction of the distance and in millimetres; the larger of the two counts."""
_PREAMBLE: Final = 132
"""Number of bytes before the first element, which end with the DICM mark."""
_LARGEST_META: Final = 2**20
"""Number of bytes within which the elements that name the transfer syntax must lie."""
DEFLATED: Final = "1.2.840.10008.1.2.1.99"
"""Transfer syntax of deflated files."""
_CHECK: Final = "check how the series was exported"


@dataclass(frozen=True)
class Series:
    """A volume, and the headers of its slices without pixels, in the order of the volume's last axis."""

    volume: Volume
    sources: tuple["Dataset", ...]


@dataclass(frozen=True)
class _Slice:
    """The header of a slice, and its position in the patient's coordinates (LPS, millimetres)."""

    file: Path
    header: "Dataset"
    size: tuple[int, int]
    spacing: NDArray[np.float64]
    cosines: NDArray[np.float64]
    position: NDArray[np.float64]

    @property
    def normal(self) -> NDArray[np.float64]:
        return np.cross(self.cosines[0], self.cosines[1])


def read_dicom(folder: str | Path, *, files: Sequence[Path] = (), limit: int = SIZE_LIMIT) -> Series:
    """Read the one series in a folder, or raise `BadInput`.

    Args:
        folder: the folder with the slices, one per file, under any names. Hidden files, a DICOMDIR, files that are not
            DICOM and subfolders are ignored.
        files: the slices, where the folder holds other files too, or the slices lie in several folders.
        limit: largest number of bytes of the voxels as float32; a larger series is refused before it is decoded.

    The axes of the volume are the columns of the image, its rows, and the slices in the direction of columns x rows.
    Values are rescaled, to int16 if slopes and intercepts are whole numbers and every value fits, else to float32.
    """
    path = Path(folder)
    slices, affine = _sorted_slices(path, files, limit)
    return Series(Volume(_voxels(slices, limit), affine), tuple(one.header for one in slices))


def read_headers(folder: str | Path, *, files: Sequence[Path] = (), limit: int = SIZE_LIMIT) -> tuple["Dataset", ...]:
    """Return the headers of the slices as `read_dicom` does, without unpacking pixels, or raise `BadInput`."""
    return tuple(one.header for one in _sorted_slices(Path(folder), files, limit)[0])


def read_grid(folder: str | Path, *, limit: int = SIZE_LIMIT) -> Series:
    """Return the series as `read_dicom` does, but with zeros for voxels, none of which are unpacked."""
    slices, affine = _sorted_slices(Path(folder), (), limit)
    rows, columns = slices[0].size
    voxels = np.broadcast_to(np.int16(0), (columns, rows, len(slices)))
    return Series(Volume(voxels, affine), tuple(one.header for one in slices))


def _sorted_slices(path: Path, files: Sequence[Path], limit: int) -> tuple[list[_Slice], NDArray[np.float64]]:
    """Return the slices of the one series in a folder in the order of the volume's last axis, and its affine."""
    require("pydicom", path)
    headers = {file: _header(file, limit) for file in files or dicom_files(path)}
    _check_one_series(path, headers)
    slices = [_slice(file, header) for file, header in headers.items()]
    _check_one_grid(path, slices)
    normal = slices[0].normal
    slices.sort(key=lambda one: float(one.position @ normal))
    affine = _affine(path, slices)
    size = 4 * len(slices) * slices[0].size[0] * slices[0].size[1]
    if size > limit:
        raise BadInput(path, f"declares {size:,} bytes of voxels, over the limit of {limit:,}", "raise the limit")
    return slices, affine


def require(package: str, path: Path) -> None:
    """Raise `BadInput` if an optional package is not installed."""
    try:
        __import__(package)
    except ImportError:
        raise BadInput(path, f"needs the package {package}", "install fheat[dicom]") from None


@contextmanager
def refusing(path: Path, reason: str = "is damaged", remedy: str = COPY_AGAIN) -> Iterator[None]:
    """Turn any error that the DICOM libraries raise on a damaged file into `BadInput`, and silence their warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror is not None:
            raise BadInput(path, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
        raise BadInput(path, f"{reason} ({one_line(error)})", remedy) from None


def one_line(value: object) -> str:
    """Return any value from a file as a text of one line, shortened to 120 characters."""
    text = " ".join(str(value).split()) or type(value).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."


def holds_dicom(folder: Path) -> bool:
    """Return whether a folder has a file with the DICM mark, which `read_dicom` would read as a slice."""
    return any(file.is_file() and _is_marked(file) for file in _candidates(folder))


def _candidates(folder: Path) -> list[Path]:
    """Return what may be a slice: all but hidden files, folders and a DICOMDIR, which has the mark and no image."""
    visible = (file for file in sorted(folder.iterdir()) if not file.name.startswith("."))
    return [file for file in visible if file.name.upper() != "DICOMDIR" and not file.is_dir()]


def _is_marked(file: Path) -> bool:
    with open_regular(file) as stream:
        return stream.read(132)[128:] == b"DICM"


def dicom_files(folder: Path, *, named: bool = False) -> list[Path]:
    """Return the files of a folder with the DICM mark; raise `BadInput` if there are none, or a .dcm file lacks it.

    With `named`, files that are named .dcm are among them, with the mark or without.
    """
    if folder.is_file():
        raise BadInput(folder, "is a file", "give the folder that holds the series")
    with refusing(folder):
        listed = _candidates(folder)
    marked_files = []
    for file in listed:
        with refusing(file):
            marked = _is_marked(file)
        if marked or (named and file.suffix.lower() == ".dcm"):
            marked_files.append(file)
        elif file.suffix.lower() == ".dcm":
            raise BadInput(file, "is named .dcm and lacks the DICM mark", COPY_AGAIN)
    if not marked_files:
        raise BadInput(folder, "holds no DICOM files", "give the folder that holds the series")
    return marked_files


def _header(file: Path, limit: int) -> "Dataset":
    """Return the header of a file, or raise `BadInput` if it is not a single-frame grey image that can be decoded."""
    import pydicom
    from pydicom.pixels.decoders.base import get_decoder

    with refusing(file):
        if file.stat().st_size > limit:
            raise BadInput(file, f"has over {limit:,} bytes", "raise the limit if it is meant")
        syntax = pydicom.uid.UID(meta_information(file).get("TransferSyntaxUID") or "missing")
        try:
            # A deflated file is unpacked as a whole when it is opened, however large it turns out to be.
            readable = syntax != DEFLATED and get_decoder(syntax).is_available
        except NotImplementedError:
            readable = False
        if not readable:
            remedy = "convert the series to Explicit VR Little Endian"
            raise BadInput(file, f"field TransferSyntaxUID is {one_line(syntax.name)}: no decoder", remedy)
        # Read from memory, not from disk: a damaged length field then asks for no more than the file has.
        header = pydicom.dcmread(BytesIO(read_capped(file, limit)), stop_before_pixels=True)
        kind = pydicom.uid.UID(header.get("SOPClassUID") or "missing").name
        if "Image Storage" not in kind:
            remedy = "leave only the images of the series in the folder"
            raise BadInput(file, f"field SOPClassUID is {one_line(kind)}: not an image", remedy)
        if header.get("NumberOfFrames") not in (None, 1) or "PerFrameFunctionalGroupsSequence" in header:
            remedy = "convert it to one file per slice"
            raise BadInput(file, f"is multi-frame (NumberOfFrames {header.get('NumberOfFrames')}, {kind})", remedy)
        colours = header.get("SamplesPerPixel"), header.get("PhotometricInterpretation")
        if colours not in ((1, "MONOCHROME1"), (1, "MONOCHROME2")):
            reason = f"fields SamplesPerPixel, PhotometricInterpretation are {one_line(colours)}: not grey values"
            raise BadInput(file, reason, "give a series of grey images")
        if "ModalityLUTSequence" in header:
            raise BadInput(file, "field ModalityLUTSequence: values through a table are not supported", _CHECK)
        return header


def meta_information(file: Path) -> "Dataset":
    """Return the first part of a header, which names the transfer syntax."""
    from pydicom.filereader import read_dataset

    with open_regular(file) as stream:
        # From memory, as all else: a damaged length field then asks for no more than there is.
        content = BytesIO(stream.read(_LARGEST_META))
    content.seek(_PREAMBLE)
    return read_dataset(content, False, True, stop_when=lambda tag, vr, length: tag.group != 2)


def _check_one_series(folder: Path, headers: dict[Path, "Dataset"]) -> None:
    with refusing(folder):
        series = Counter(str(header.get("SeriesInstanceUID")) for header in headers.values())
    if len(series) > 1:
        counts = ", ".join(str(count) for _, count in series.most_common(8))
        reason = f"field SeriesInstanceUID: holds {len(series)} series (of {counts} files)"
        raise BadInput(folder, reason, "put each series in a folder of its own")


def _slice(file: Path, header: "Dataset") -> _Slice:
    with refusing(file):
        for keyword in ("SOPInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"):
            if not header.get(keyword):
                raise BadInput(file, f"field {keyword} is missing", _CHECK)
        spacing = _numbers(file, header, "PixelSpacing", 2)
        cosines = _numbers(file, header, "ImageOrientationPatient", 6).reshape(2, 3)
        lengths = np.linalg.norm(cosines, axis=1)
        if np.abs(lengths - 1).max() > _ANGLE or abs(cosines[0] @ cosines[1]) > _ANGLE:
            reason = f"field ImageOrientationPatient is {cosines.ravel().tolist()}: not two perpendicular unit vectors"
            raise BadInput(file, reason, _CHECK)
        rows, columns = (int(_numbers(file, header, keyword, 1)[0]) for keyword in ("Rows", "Columns"))
        if min(rows, columns) < 1:
            raise BadInput(file, f"fields Rows, Columns are {rows}, {columns}", _CHECK)
        position = _numbers(file, header, "ImagePositionPatient", 3)
        return _Slice(file, header, (rows, columns), spacing, cosines / lengths[:, None], position)


def _numbers(file: Path, header: "Dataset", keyword: str, count: int) -> NDArray[np.float64]:
    value = header.get(keyword)
    try:
        if "_" in str(value):  # Python reads 1_5 as 15, and nobody else does
            raise ValueError
        numbers = np.asarray(value, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.shape != (count,) or not (np.abs(numbers) < _LARGEST_NUMBER).all():  # NaN is not smaller either
        raise BadInput(file, f"field {keyword} is {one_line(value)}: expected {count} finite numbers", _CHECK)
    return numbers


def _check_one_grid(folder: Path, slices: Sequence[_Slice]) -> None:
    """Raise `BadInput` unless all slices share size, spacing, orientation and frame of reference."""
    first = slices[0]
    for other in slices[1:]:
        frames = first.header.FrameOfReferenceUID, other.header.FrameOfReferenceUID
        for keyword, same in (
            ("Rows", first.size[0] == other.size[0]),
            ("Columns", first.size[1] == other.size[1]),
            ("PixelSpacing", np.allclose(first.spacing, other.spacing, rtol=1e-4, atol=0)),
            ("ImageOrientationPatient", np.abs(first.cosines - other.cosines).max() < 1e-4),
            ("FrameOfReferenceUID", frames[0] == frames[1]),
        ):
            if not same:
                values = [f"{one_line(one.header.get(keyword))} in {one.file.name}" for one in (first, other)]
                raise BadInput(folder, f"field {keyword} is {values[0]} and {values[1]}", "keep the slices of one scan")


def _affine(folder: Path, slices: Sequence[_Slice]) -> NDArray[np.float64]:
    """Return the map from (column, row, slice) to RAS millimetres for sorted slices, or raise `BadInput`."""
    first = slices[0]
    if len(slices) == 1:
        step = first.normal * _depth(first)
    else:
        _check_stack(folder, slices)
        step = (slices[-1].position - first.position) / (len(slices) - 1)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = first.cosines[0] * first.spacing[1], first.cosines[1] * first.spacing[0]
    affine[:3, 2], affine[:3, 3] = step, first.position
    affine = LPS_TO_RAS @ affine
    fault = geometry_fault(affine)
    if fault is None and np.linalg.det(affine[:3, :3]) <= 0:
        fault = "has a negative depth"
    if fault is not None:
        raise BadInput(first.file, f"fields PixelSpacing, SliceThickness: affine {fault}", _CHECK)
    return affine


def _depth(one: _Slice) -> float:
    """Return the thickness of a single slice in millimetres."""
    with refusing(one.file):
        for keyword in ("SpacingBetweenSlices", "SliceThickness"):
            if one.header.get(keyword):
                return float(_numbers(one.file, one.header, keyword, 1)[0])
    reason = "is a single slice without SpacingBetweenSlices or SliceThickness: its depth is unknown"
    raise BadInput(one.file, reason, "set one of them")


def _check_stack(folder: Path, slices: Sequence[_Slice]) -> None:
    """Raise `BadInput` if sorted slices coincide, leave a gap, or shift sideways as under a tilted gantry."""
    positions = np.stack([one.position for one in slices])
    normal = slices[0].normal
    heights = (positions - positions[0]) @ normal
    gaps = np.diff(heights)
    usual = float(np.median(gaps))

    def refuse(index: int, reason: str, remedy: str) -> NoReturn:
        pair = " and ".join(f"{one.file.name} at {one.position.tolist()}" for one in slices[index : index + 2])
        raise BadInput(folder, f"field ImagePositionPatient: {reason}: {pair}", remedy)

    if gaps.min() < 1e-3:
        refuse(int(gaps.argmin()), "two slices at one position", "put each time point or repeat in a folder of its own")
    tolerance = max(_GAP * usual, _GAP)
    worst = int(np.abs(gaps - usual).argmax())
    if abs(gaps[worst] - usual) > tolerance:
        reason = f"a gap of {gaps[worst]:.4g} mm where slices are {usual:.4g} mm apart"
        refuse(worst, reason, "find the missing slices" if gaps[worst] > usual else "keep the slices of one scan")
    sideways = np.linalg.norm(positions - positions[0] - np.outer(heights, normal), axis=1)
    if (sideways > _GAP + _ANGLE * heights).any():
        degrees = np.degrees(np.arctan2(sideways[-1], heights[-1]))
        reason = f"the stack leans {degrees:.3g} degrees from the normal of its slices (gantry tilt)"
        worst = int((sideways - _ANGLE * heights)[1:].argmax())
        refuse(worst, reason, "resample the series onto a straight grid first")
    drift = np.abs(heights - np.linspace(0, heights[-1], len(slices)))
    if drift.max() > tolerance:
        reason = f"distances between slices drift, by {drift.max():.4g} mm in all"
        refuse(int(drift.argmax()) - 1, reason, "keep the slices of one scan")


def _voxels(slices: Sequence[_Slice], limit: int) -> NDArray[Any]:
    stack: NDArray[Any] = np.empty((len(slices), *slices[0].size), dtype=np.int16)
    for index, one in enumerate(slices):
        plane = _plane(one, limit)
        if plane.dtype == np.float32 and stack.dtype == np.int16:
            stack = stack.astype(np.float32)
        stack[index] = plane
    return stack.transpose(2, 1, 0)


def _plane(one: _Slice, limit: int) -> NDArray[Any]:
    """Return the rescaled pixels of a slice, (rows, columns), as int16 if that is exact, else as float32."""
    import pydicom

    with refusing(one.file):
        image = pydicom.dcmread(BytesIO(read_capped(one.file, limit)))
        if not any(keyword in image for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
            raise BadInput(one.file, "field PixelData is missing", COPY_AGAIN)
        stored = image.pixel_array
        if stored.shape != one.size:
            raise BadInput(one.file, f"holds pixels of shape {stored.shape}, header {one.size}", COPY_AGAIN)
        slope, intercept = (
            float(_numbers(one.file, one.header, keyword, 1)[0]) if keyword in one.header else absent
            for keyword, absent in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
        )
        if slope == 0:
            raise BadInput(one.file, "field RescaleSlope is 0", _CHECK)
        if stored.dtype.kind in "iu" and slope.is_integer() and intercept.is_integer():
            values = stored.astype(np.int64) * int(slope) + int(intercept)
            fits = values.min() >= -(2**15) and values.max() < 2**15
            return values.astype(np.int16 if fits else np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            plane = (stored * np.float64(slope) + intercept).astype(np.float32)
        if not np.isfinite(plane).all():
            count = int(np.count_nonzero(~np.isfinite(plane)))
            raise BadInput(one.file, f"holds {count:,} voxels that are NaN or infinite", "replace them before use")
        return plane
