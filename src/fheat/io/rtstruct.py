"""Writing a mask as a DICOM RT Structure Set, the form in which treatment planning systems take contours.

A contour runs halfway between the centres of voxels inside and outside, so that a reader that takes the voxels whose
centres lie inside gets the same mask back. A hole is cut open to its right: the contour goes in along a line and comes
back on it (a keyhole), because nested contours mean different things to different programs. Such a line runs between
two rows and meets no centre of a voxel.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from fheat import __version__
from fheat.io.codes import SegmentCode, segment_code
from fheat.io.dicom import LPS_TO_RAS, Series, refusing, require
from fheat.io.dicom_seg import checked_labels
from fheat.io.volume import Volume
from fheat.system.files import write_file

if TYPE_CHECKING:
    from pydicom import Dataset

Points = NDArray[np.float64]
"""Points of a closed contour, (N, 2): column and row; the first is not repeated."""
_COLOURS: Final = (
    (228, 26, 28), (55, 126, 184), (77, 175, 74), (152, 78, 163), (255, 127, 0), (166, 86, 40), (247, 129, 191),
)  # fmt: skip
_COPIED: Final = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyInstanceUID", "StudyID", "StudyDate",
    "StudyTime", "AccessionNumber", "ReferringPhysicianName",
)  # fmt: skip
"""Fields of patient and study; one that a series lacks is empty."""


def write_rtstruct(
    mask: Volume,
    series: Series,
    path: str | Path,
    classes: Sequence[str],
    *,
    codes: Mapping[int, SegmentCode] | None = None,
    label: str = "fheat",
) -> None:
    """Write a mask on the grid of `series` as contours, replacing an older file only once the new one is complete.

    Args:
        mask: whole numbers, with the shape and affine of `series.volume`; 0 is background.
        series: the result of `read_dicom`; patient, study and the referenced slices are taken from its headers.
        classes: names by label value, the background first. All but the first become structures, even if they are
            absent from the mask; the number of a structure is its label value.
        codes: what each label value shows, as in `fheat.io.dicom_seg.write_dicom_seg`.
        label: name of the structure set.

    The structures are marked as made automatically and not approved.
    """
    target = Path(path)
    require("pydicom", target)
    labels = checked_labels(mask, series, target, classes)
    known = dict(enumerate(map(segment_code, classes))) | dict(codes or {})
    with refusing(target, "cannot be made from the headers of the series", "correct that field in the series"):
        stored = _structure_set(series, label)
        stored.StructureSetROISequence, stored.ROIContourSequence, stored.RTROIObservationsSequence = [], [], []
        for number, name in enumerate(classes[1:], start=1):
            stored.StructureSetROISequence.append(_structure(number, name, str(stored.FrameOfReferenceUID)))
            stored.ROIContourSequence.append(_contours(number, labels == number, series))
            stored.RTROIObservationsSequence.append(_observation(number, known[number]))
        content = BytesIO()
        stored.save_as(content, enforce_file_format=True)
    write_file(target, content.getvalue())


def outlines(inside: NDArray[np.bool_]) -> Iterator[Points]:
    """Yield the contours of a slice, (rows, columns), each without holes: holes are joined to what is around them.

    A voxel belongs to the slice where its centre, (column, row) in whole numbers, is inside an odd number of contours.
    """
    import contourpy

    padded = np.pad(inside, 1).astype(np.float64)
    drawn = contourpy.contour_generator(z=padded, fill_type="OuterOffset").filled(0.5, 2.0)
    for points, offsets in zip(*drawn, strict=True):
        outer, *holes = (points[a : b - 1].astype(np.float64) - 1 for a, b in pairwise(offsets))
        for hole in sorted(holes, key=lambda ring: -ring[:, 0].max()):
            outer = _joined(outer, hole)
        yield outer


def _joined(outer: Points, hole: Points) -> Points:
    """Return one contour of a ring and a hole in it, joined by a line to the right, half a row beside a hole's end.

    The ring has what lies to the right already: holes are joined from the right to the left, and any ring that the line
    meets reaches further to the right than this one.
    """
    row = hole[hole[:, 0].argmax(), 1]
    height = np.floor(row) + 0.5  # between two rows
    begin, start = max(_crossings(hole, height), key=lambda crossing: crossing[0])
    end, stop = min((one for one in _crossings(outer, height) if one[0] > begin), key=lambda crossing: crossing[0])
    cut, bridge = np.array([begin, height]), np.array([end, height])
    around = np.roll(hole, -(start + 1), axis=0)
    ring = np.concatenate([outer[: stop + 1], [bridge, cut], around, [cut, bridge], outer[stop + 1 :]])
    moved: NDArray[np.bool_] = (ring != np.roll(ring, 1, axis=0)).any(axis=1)
    return np.asarray(ring[moved])  # a line may begin or end at a point that is there


def _crossings(ring: Points, height: float) -> list[tuple[float, int]]:
    """Return the column at which each edge of a ring meets a row, and the number of the edge."""
    first, second = ring, np.roll(ring, -1, axis=0)
    met = np.flatnonzero(
        (np.minimum(first[:, 1], second[:, 1]) <= height) & (height <= np.maximum(first, second)[:, 1])
    )
    found = []
    for edge in met:
        (x, y), (u, v) = first[edge], second[edge]
        found += [(float(x if v == y else x + (u - x) * (height - y) / (v - y)), int(edge))]
    return found


def _structure_set(series: Series, label: str) -> "Dataset":
    """Return the file without its structures."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ImplicitVRLittleEndian, RTStructureSetStorage, generate_uid

    first, now = series.sources[0], datetime.now()
    stored = Dataset()
    stored.file_meta = FileMetaDataset()
    # With explicit types a contour of more than 64 KiB would lose its own.
    stored.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    stored.file_meta.MediaStorageSOPClassUID = stored.SOPClassUID = RTStructureSetStorage
    stored.file_meta.MediaStorageSOPInstanceUID = stored.SOPInstanceUID = generate_uid()
    stored.SpecificCharacterSet = "ISO_IR 192"
    for keyword in _COPIED:
        setattr(stored, keyword, first.get(keyword) or "")
    stored.SeriesInstanceUID, stored.SeriesNumber, stored.InstanceNumber = generate_uid(), 901, 1
    stored.Modality, stored.SeriesDescription, stored.OperatorsName = "RTSTRUCT", "fheat contours", ""
    stored.Manufacturer = stored.ManufacturerModelName = "fheat"
    stored.SoftwareVersions, stored.PositionReferenceIndicator = __version__, ""
    stored.FrameOfReferenceUID = first.FrameOfReferenceUID
    stored.StructureSetLabel, stored.ApprovalStatus = label[:16], "UNAPPROVED"
    stored.StructureSetDate, stored.StructureSetTime = now.strftime("%Y%m%d"), now.strftime("%H%M%S")
    held, study, frame = Dataset(), Dataset(), Dataset()
    held.SeriesInstanceUID = first.SeriesInstanceUID
    held.ContourImageSequence = [_reference(source) for source in series.sources]
    study.ReferencedSOPClassUID = "1.2.840.10008.3.1.2.3.1"  # a study, retired and still asked for
    study.ReferencedSOPInstanceUID, study.RTReferencedSeriesSequence = first.StudyInstanceUID, [held]
    frame.FrameOfReferenceUID, frame.RTReferencedStudySequence = first.FrameOfReferenceUID, [study]
    stored.ReferencedFrameOfReferenceSequence = [frame]
    return stored


def _reference(source: "Dataset") -> "Dataset":
    from pydicom import Dataset

    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = source.SOPClassUID, source.SOPInstanceUID
    return item


def _structure(number: int, name: str, frame: str) -> "Dataset":
    from pydicom import Dataset

    item = Dataset()
    item.ROINumber, item.ROIName, item.ReferencedFrameOfReferenceUID = number, name, frame
    item.ROIGenerationAlgorithm = "AUTOMATIC"
    return item


def _contours(number: int, inside: NDArray[np.bool_], series: Series) -> "Dataset":
    """Return the contours of one structure; inside (slices, rows, columns)."""
    from pydicom import Dataset
    from pydicom.valuerep import format_number_as_ds

    affine = LPS_TO_RAS @ series.volume.affine
    item = Dataset()
    item.ReferencedROINumber = number
    item.ROIDisplayColor = list(_COLOURS[(number - 1) % len(_COLOURS)])
    item.ContourSequence = []
    for index, source in enumerate(series.sources):
        for ring in outlines(inside[index]) if inside[index].any() else ():
            flat = np.column_stack([ring, np.full(len(ring), index), np.ones(len(ring))])
            contour = Dataset()
            contour.ContourImageSequence = [_reference(source)]
            contour.ContourGeometricType, contour.NumberOfContourPoints = "CLOSED_PLANAR", len(ring)
            contour.ContourData = [format_number_as_ds(float(value)) for value in (flat @ affine.T)[:, :3].ravel()]
            item.ContourSequence.append(contour)
    return item


def _observation(number: int, code: SegmentCode) -> "Dataset":
    from pydicom import Dataset

    item = Dataset()
    item.ObservationNumber = item.ReferencedROINumber = number
    item.RTROIInterpretedType = item.ROIInterpreter = ""
    item.RTROIIdentificationCodeSequence = [code.type.item()]
    return item
