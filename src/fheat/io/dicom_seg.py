"""Writing a mask as a DICOM SEG that belongs to a series, and reading it back.

The file is of type BINARY and has one segment per foreground class, whose segment number is the label value. Slices
without foreground are left out, as viewers expect; an empty mask keeps all its slices, because a SEG has at least one.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fheat import __version__
from fheat.io.codes import Code, SegmentCode, segment_code
from fheat.io.content import SIZE_LIMIT
from fheat.io.dicom import LPS_TO_RAS, Series, one_line, refusing, require
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.files import read_capped, write_file

if TYPE_CHECKING:
    from highdicom.seg import Segmentation, SegmentDescription
    from pydicom import Dataset

GRID_TOLERANCE: Final = 1e-3
"""Largest difference of the affines of mask and series, in millimetres."""
_LONGEST_LABEL: Final = 64
"""Largest number of characters of a segment label."""
_LARGEST_LABEL: Final = 255
"""Largest label value."""
_KINDS: Final = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
"""Storage classes of segmentations: one frame per segment, or label maps."""
_MAY_BE_EMPTY: Final = (
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex",
    "AccessionNumber", "StudyID", "StudyDate", "StudyTime",
)  # fmt: skip
"""Fields that the standard allows to be empty and anonymisers remove, although highdicom needs them."""


def write_dicom_seg(
    mask: Volume,
    series: Series,
    path: str | Path,
    classes: Sequence[str],
    *,
    codes: Mapping[int, SegmentCode] | None = None,
    corrected: bool = False,
    description: str = "fheat segmentation",
    series_number: int = 900,
) -> None:
    """Write a mask on the grid of `series`, replacing an older file only once the new one is complete on disk.

    Args:
        mask: whole numbers, with the shape and affine of `series.volume`; 0 is background.
        series: the result of `read_dicom`; patient, study and the referenced slices are taken from its headers.
        classes: names by label value, the background first, as in a model's card. All but the first become segments,
            even if they are absent from the mask.
        codes: what each label value shows; a value that is left out gets the code that `fheat.io.codes` knows for the
            name of its class, or that of an anatomical structure, a tissue.
        corrected: whether a person changed the mask; the segments are then marked SEMIAUTOMATIC, else AUTOMATIC.
        description, series_number: fields of the new series.
    """
    target = Path(path)
    require("highdicom", target)
    labels = checked_labels(mask, series, target, classes)
    with refusing(target, "cannot be made from the headers of the series", "correct that field in the series"):
        known = dict(enumerate(map(segment_code, classes))) | dict(codes or {})
        how = "SEMIAUTOMATIC" if corrected else "AUTOMATIC"
        described = [_describe(number, name, known[number], how) for number, name in enumerate(classes[1:], start=1)]
        stored = _segmentation(labels, series, described, description=description, series_number=series_number)
        content = BytesIO()
        stored.save_as(content)
    write_file(target, content.getvalue())


def read_dicom_seg(path: str | Path, series: Series, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a SEG on the grid of `series` as uint8: the segment number inside a segment, 0 elsewhere.

    Raises `BadInput` for fractional segments, segments that overlap, another frame of reference, and frames off the
    grid. Slices that the file leaves out are background.
    """
    file = Path(path)
    require("highdicom", file)
    with refusing(file):
        segmentation = _opened(file, limit)
        frames = segmentation.get("FrameOfReferenceUID"), series.sources[0].FrameOfReferenceUID
        if frames[0] != frames[1]:
            reason = f"field FrameOfReferenceUID is {one_line(frames[0])}, the series has {one_line(frames[1])}"
            raise BadInput(file, reason, "give the series it was drawn on")
        start, count, flipped = _slices_of(file, segmentation, series.volume)
        # The tolerance is for positions that were rounded; `_slices_of` has checked where the frames lie.
        planes = segmentation.get_volume(combine_segments=True, dtype=np.uint8, rtol=0.05).array
        labels = np.zeros(series.volume.data.shape, dtype=np.uint8)
        labels[:, :, start : start + count] = (planes[::-1] if flipped else planes).transpose(2, 1, 0)
        return Volume(labels, series.volume.affine)


def parse_dicom_seg(path: str | Path, *, limit: int = SIZE_LIMIT) -> Volume:
    """Read a SEG without its series as uint8, on the part of the grid that its frames span, or raise `BadInput`.

    The axes are columns, rows and slices. Slices that the file leaves out at either end are no part of the volume; see
    `read_dicom_seg` for what is refused.
    """
    file = Path(path)
    require("highdicom", file)
    with refusing(file):
        segmentation = _opened(file, limit)
        geometry = segmentation.get_volume_geometry(rtol=0.05)
        if geometry is None:
            raise BadInput(file, "field PlanePositionSequence: its frames are not on one even grid", "resample it")
        size = int(np.prod(geometry.spatial_shape, dtype=np.float64))
        if size > limit:
            raise BadInput(file, f"declares {size:,} bytes of voxels, over the limit of {limit:,}", "raise the limit")
        planes = segmentation.get_volume(combine_segments=True, dtype=np.uint8, rtol=0.05).array
        affine = LPS_TO_RAS @ geometry.affine[:, [2, 1, 0, 3]]
        if np.linalg.det(affine[:3, :3]) < 0:  # against the direction in which `read_dicom` has slices
            planes = planes[::-1]
            affine[:, 3] += (len(planes) - 1) * affine[:, 2]
            affine[:, 2] *= -1
        return Volume(np.ascontiguousarray(planes.transpose(2, 1, 0)), affine)


def _opened(file: Path, limit: int) -> Any:
    """Return the file as highdicom reads it, or raise `BadInput` unless it is a SEG of whole labels up to 255."""
    import highdicom
    import pydicom

    content = read_capped(file, limit)
    kind = pydicom.dcmread(BytesIO(content), stop_before_pixels=True, specific_tags=["SOPClassUID"]).get("SOPClassUID")
    if kind not in _KINDS:
        name = one_line(pydicom.uid.UID(kind or "missing").name)
        raise BadInput(
            file, f"field SOPClassUID is {name}: not a DICOM SEG", "give a SEG, a NIfTI file or the folder of a series"
        )
    segmentation = highdicom.seg.segread(BytesIO(content))
    if segmentation.SegmentationType == "FRACTIONAL":
        raise BadInput(file, "field SegmentationType is FRACTIONAL: labels are whole", "export it as BINARY")
    largest = max(segmentation.segment_numbers, default=0)
    if largest > _LARGEST_LABEL:
        raise BadInput(file, f"field SegmentNumber goes to {largest}", "number them up to 255")
    return segmentation


def checked_labels(mask: Volume, series: Series, target: Path, classes: Sequence[str]) -> NDArray[np.uint8]:
    """Return the mask as uint8, (slices, rows, columns), or raise `BadInput` if it does not fit series and classes."""
    remedy = "write the mask on the grid of the series"
    shapes = mask.data.shape, series.volume.data.shape
    if shapes[0] != shapes[1]:
        raise BadInput(target, f"mask has shape {shapes[0]}, the series {shapes[1]}", remedy)
    apart = float(np.abs(mask.affine - series.volume.affine).max())
    if apart > GRID_TOLERANCE:
        raise BadInput(target, f"affine of the mask is {apart:.4g} off that of the series", remedy)
    if not 2 <= len(classes) <= _LARGEST_LABEL + 1:
        reason = f"{len(classes)} classes: expected the background and 1 to {_LARGEST_LABEL} more"
        raise BadInput(target, reason, "name the classes of the mask")
    for name in classes[1:]:
        if not name.strip() or len(name) > _LONGEST_LABEL or not name.isprintable() or "\\" in name:
            reason = f"class name {one_line(repr(name))} cannot be a segment label"
            raise BadInput(target, reason, f"use 1 to {_LONGEST_LABEL} printable characters, no backslash")
    values = np.unique(mask.data)
    if not np.isin(values, np.arange(len(classes))).all():
        strays = values[~np.isin(values, np.arange(len(classes)))][:4].tolist()
        raise BadInput(target, f"mask holds {strays}, classes go from 0 to {len(classes) - 1}", "name every class")
    return np.ascontiguousarray(mask.data.transpose(2, 1, 0).astype(np.uint8))


def _segmentation(
    labels: NDArray[np.uint8],
    series: Series,
    described: Sequence["SegmentDescription"],
    *,
    description: str,
    series_number: int,
) -> "Segmentation":
    import highdicom

    first, *others = series.sources
    return highdicom.seg.Segmentation(
        source_images=[_completed(first, series.volume.spacing[2]), *others],
        pixel_array=labels,
        segmentation_type="BINARY",
        segment_descriptions=described,
        series_instance_uid=highdicom.UID(),
        series_number=series_number,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="fheat",
        manufacturer_model_name="fheat",
        software_versions=__version__,
        device_serial_number="0",
        omit_empty_frames=bool(labels.any()),
        content_label="SEGMENTATION",
        series_description=description,
        # Class names may be in any script. Patient fields are decoded already and are encoded again.
        specific_character_set="ISO_IR 192",
    )


def _completed(header: "Dataset", depth: float) -> "Dataset":
    """Return a copy of the first header with all fields that highdicom takes from it.

    It states the true distance of the slices, so that a reader can tell a missing slice from a wider grid.
    """
    from pydicom.valuerep import DSfloat

    filled = deepcopy(header)
    filled.SpacingBetweenSlices = DSfloat(depth, auto_format=True)
    if not filled.get("SliceThickness"):
        filled.SliceThickness = filled.SpacingBetweenSlices
    for keyword in _MAY_BE_EMPTY:
        if keyword not in filled:
            setattr(filled, keyword, "")
    return filled


def _describe(number: int, name: str, code: SegmentCode, how: str) -> "SegmentDescription":
    import highdicom
    from pydicom.sr.codedict import codes

    def concept(one: Code) -> Any:
        return highdicom.sr.CodedConcept(one.value, one.scheme, one.meaning)

    described = highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=name,
        segmented_property_category=concept(code.category),
        segmented_property_type=concept(code.type),
        anatomic_regions=None if code.region is None else [concept(code.region)],
        algorithm_type=how,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name="fheat", family=codes.DCM.ArtificialIntelligence, version=__version__
        ),
    )
    if code.modifiers:  # which highdicom has no argument for
        inside = described.SegmentedPropertyTypeCodeSequence[0]
        inside.SegmentedPropertyTypeModifierCodeSequence = [one.item() for one in code.modifiers]
    return described


def _slices_of(file: Path, segmentation: Any, volume: Volume) -> tuple[int, int, bool]:
    """Return the first slice of the series that the SEG covers, their number, and whether the order is reversed.

    This needs the header only; no frame is unpacked before.
    """
    remedy = "give the series it was drawn on, or resample it"
    geometry = segmentation.get_volume_geometry(rtol=0.05)
    if geometry is None:
        raise BadInput(file, "field PlanePositionSequence: its frames are not on one even grid", remedy)
    count, rows, columns = geometry.spatial_shape
    width, height, depth = volume.data.shape
    if (columns, rows) != (width, height):
        raise BadInput(file, f"fields Columns, Rows are {columns}, {rows}, the series has {width}, {height}", remedy)
    affine = LPS_TO_RAS @ geometry.affine[:, [2, 1, 0, 3]]
    inside = np.linalg.solve(volume.affine, affine)
    flipped = bool(inside[2, 2] < 0)
    start = round(float(inside[2, 3])) - (count - 1 if flipped else 0)
    expected = np.eye(4)
    expected[2, 2], expected[2, 3] = (-1, start + count - 1) if flipped else (1, start)
    corners = np.array([[0, 0, 0, 1], [columns - 1, rows - 1, count - 1, 1]], dtype=np.float64).T
    apart = float(np.abs((inside - expected) @ corners).max())
    if apart > 0.05 or start < 0 or start + count > depth:
        where = f"at slices {start} to {start + count - 1}"
        raise BadInput(file, f"its frames lie {apart:.3g} voxels off the grid of the series, {where}", remedy)
    return start, count, flipped
