"""DICOM SEG: what was written comes back on the same voxels, and is a SEG that others can read."""

import os
import sys

import numpy as np
import pytest

pytest.importorskip("highdicom")

import highdicom
import pydicom
from pydicom.uid import MRImageStorage

from fheat import BadInput
from fheat.io import Volume
from fheat.io.dicom import read_dicom
from fheat.io.dicom_seg import read_dicom_seg, write_dicom_seg
from tests.grids import oblique
from tests.io.dicom_series import SHAPE, affines, save, scan, slices
from tests.refusals import refused

PLAIN = np.diag([0.625, 0.5, 1.25, 1.0])
CLASSES = ("background", "atrium", "wall", "absent")


def labels(seed=0):
    """Two classes in slices 1, 2 and 5 of 7, so that slices are missing at both ends and in between."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(SHAPE, np.uint8)
    mask[:, :, [1, 2, 5]] = rng.integers(0, 3, (*SHAPE[:2], 3))
    return mask


@pytest.fixture
def series(tmp_path):
    return read_dicom(save(slices(scan(), PLAIN), tmp_path / "series"))


def refusal(call, *arguments, **options):
    return str(refused(call, *arguments, **options))


@pytest.mark.slow
def test_every_orientation_comes_back(tmp_path):
    count = 0
    for affine in affines(spacings=((0.625, 0.5, 1.25),), angles=(17,)):
        series = read_dicom(save(slices(scan(), affine), tmp_path / "series"))
        mask = Volume(labels(count), series.volume.affine)
        write_dicom_seg(mask, series, tmp_path / "mask.dcm", CLASSES)
        again = read_dicom_seg(tmp_path / "mask.dcm", series)
        assert np.array_equal(again.data, mask.data)
        assert again.data.dtype == np.uint8
        assert np.array_equal(again.affine, series.volume.affine)
        count += 1
    assert count == 48


@pytest.mark.parametrize("kept", [(0,), (3,), (6,), (0, 6), (1, 4), range(7), ()])
def test_slices_left_out_come_back_empty(tmp_path, series, kept):
    """Also the empty mask, which keeps its frames: a SEG holds at least one."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[2:9, 3:5, list(kept)] = 1
    write_dicom_seg(Volume(mask, PLAIN), series, tmp_path / "mask.dcm", CLASSES[:2])
    assert np.array_equal(read_dicom_seg(tmp_path / "mask.dcm", series).data, mask)
    assert pydicom.dcmread(tmp_path / "mask.dcm").NumberOfFrames == (len(kept) or SHAPE[2])


def test_each_frame_points_to_its_slice(tmp_path, series):
    """Read by the references to the source images, a second way that does not use positions."""
    write_dicom_seg(Volume(labels(), PLAIN), series, tmp_path / "mask.dcm", CLASSES)
    found = highdicom.seg.segread(tmp_path / "mask.dcm")
    planes = found.get_pixels_by_source_instance(
        [source.SOPInstanceUID for source in series.sources],
        combine_segments=True,
        assert_missing_frames_are_empty=True,
    )
    assert np.array_equal(planes.transpose(2, 1, 0), labels())


def test_what_the_file_says(tmp_path, series):
    path = tmp_path / "mask.dcm"
    write_dicom_seg(Volume(labels(), PLAIN), series, path, ("background", "atrium", "Herzwand ä", "左心房"))
    assert path.read_bytes()[:132] == bytes(128) + b"DICM"
    found, source = pydicom.dcmread(path), series.sources[0]
    assert (found.Modality, found.SegmentationType, found.Manufacturer) == ("SEG", "BINARY", "fheat")
    assert (found.SeriesDescription, found.SeriesNumber) == ("fheat segmentation", 900)
    assert [segment.SegmentNumber for segment in found.SegmentSequence] == [1, 2, 3]
    assert [segment.SegmentLabel for segment in found.SegmentSequence] == ["atrium", "Herzwand ä", "左心房"]
    for segment in found.SegmentSequence:
        assert (segment.SegmentAlgorithmType, segment.SegmentAlgorithmName) == ("AUTOMATIC", "fheat")
        assert segment.SegmentedPropertyCategoryCodeSequence[0].CodeMeaning == "Anatomical Structure"
        assert segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning == "Tissue"
    for field in ("StudyInstanceUID", "FrameOfReferenceUID", "PatientID", "PatientName"):
        assert found[field].value == source[field].value
    assert found.SeriesInstanceUID != source.SeriesInstanceUID
    assert found.ReferencedSeriesSequence[0].SeriesInstanceUID == source.SeriesInstanceUID


def test_anonymised_mr_with_rounded_positions(tmp_path):
    """No patient fields at all, no thickness, a depth stated wrongly, positions to two decimals."""
    affine = np.eye(4)
    affine[:3, :3] = oblique(17) @ np.diag([0.5, 0.5, 0.7])
    images = slices(scan(), affine, storage=MRImageStorage, modality="MR", SpacingBetweenSlices=5)
    for image in images:
        image.ImagePositionPatient = [round(float(v), 2) for v in image.ImagePositionPatient]
        for field in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyID", "SliceThickness"):
            delattr(image, field)
    series = read_dicom(save(images, tmp_path / "series"))
    write_dicom_seg(Volume(labels(), series.volume.affine), series, tmp_path / "mask.dcm", CLASSES)
    assert np.array_equal(read_dicom_seg(tmp_path / "mask.dcm", series).data, labels())
    assert "PatientID" not in series.sources[0]


def test_a_name_in_another_character_set_is_carried_over(tmp_path):
    images = slices(scan(), PLAIN, SpecificCharacterSet="ISO_IR 100", PatientName="Müller^Jörg")
    series = read_dicom(save(images, tmp_path / "series"))
    write_dicom_seg(Volume(labels(), PLAIN), series, tmp_path / "mask.dcm", CLASSES)
    assert str(pydicom.dcmread(tmp_path / "mask.dcm").PatientName) == "Müller^Jörg"


def test_headers_that_no_seg_can_refer_to(tmp_path):
    images = slices(scan(), PLAIN)
    del images[0].StudyInstanceUID
    series = read_dicom(save(images, tmp_path / "series"))
    said = refusal(write_dicom_seg, Volume(labels(), PLAIN), series, tmp_path / "mask.dcm", CLASSES)
    assert "cannot be made from the headers of the series" in said
    assert "StudyInstanceUID" in said


def test_a_single_slice(tmp_path):
    series = read_dicom(save(slices(scan((12, 10, 1)), PLAIN), tmp_path / "series"))
    mask = labels()[:, :, 1:2]
    write_dicom_seg(Volume(mask, PLAIN), series, tmp_path / "mask.dcm", CLASSES)
    assert np.array_equal(read_dicom_seg(tmp_path / "mask.dcm", series).data, mask)


@pytest.mark.parametrize(
    ("mask", "affine", "classes", "says"),
    [
        (labels()[:, :, :6], PLAIN, CLASSES, "mask has shape (12, 10, 6), the series (12, 10, 7)"),
        (labels(), PLAIN + 2e-3 * np.eye(4, k=3), CLASSES, "affine of the mask is 0.002 off"),
        (labels(), PLAIN, CLASSES[:2], "mask holds [2], classes go from 0 to 1"),
        (labels() * 0.5, PLAIN, CLASSES, "mask holds [0.5], classes go from 0 to 3"),
        (labels().astype(np.int16) - 1, PLAIN, CLASSES, "mask holds [-1]"),
        (np.full(SHAPE, np.nan), PLAIN, CLASSES, "mask holds [nan]"),
        (labels(), PLAIN, ("background",), "1 classes: expected the background and 1 to 255 more"),
        (labels(), PLAIN, ("background", "a", ""), "class name '' cannot be a segment label"),
        (labels(), PLAIN, ("background", "a", "x" * 65), "cannot be a segment label"),
        (labels(), PLAIN, ("background", "a", "b\\c"), "cannot be a segment label"),
    ],
)
def test_masks_that_do_not_fit(tmp_path, series, mask, affine, classes, says):
    target = tmp_path / "mask.dcm"
    assert says in refusal(write_dicom_seg, Volume(mask, affine), series, target, classes)
    assert not target.exists()


def test_the_tolerance_of_the_grid(tmp_path, series):
    nearly = PLAIN + 0.9e-3 * np.eye(4, k=3)
    write_dicom_seg(Volume(labels(), nearly), series, tmp_path / "mask.dcm", CLASSES)
    assert np.array_equal(read_dicom_seg(tmp_path / "mask.dcm", series).data, labels())


def other_series(folder, affine, frame, shape=SHAPE):
    return read_dicom(save(slices(scan(shape), affine, FrameOfReferenceUID=frame), folder))


def test_segs_of_another_grid_are_refused(tmp_path, series):
    path, frame = tmp_path / "mask.dcm", series.sources[0].FrameOfReferenceUID
    write_dicom_seg(Volume(labels(), PLAIN), series, path, CLASSES)
    shifted = PLAIN + 0.3 * np.eye(4, k=3)
    higher = PLAIN.copy()
    higher[2, 3] = 3 * 1.25
    cases = [
        (other_series(tmp_path / "a", PLAIN, "1.2.3"), f"field FrameOfReferenceUID is {frame}, the series has 1.2.3"),
        (
            other_series(tmp_path / "b", PLAIN, frame, (12, 9, 7)),
            "Rows are 12, 10, the series has 12, 9",
        ),
        (other_series(tmp_path / "c", shifted, frame), "voxels off the grid of the series"),
        (other_series(tmp_path / "d", PLAIN @ np.diag([1, 1, 2, 1]), frame), "voxels off the grid"),
        (other_series(tmp_path / "e", higher, frame), "at slices -2 to 2"),
        (other_series(tmp_path / "f", PLAIN, frame, (12, 10, 4)), "at slices 1 to 5"),
    ]
    for other, says in cases:
        assert says in refusal(read_dicom_seg, path, other)


def test_other_files_are_refused(tmp_path, series):
    assert "CT Image Storage: not a DICOM SEG" in refusal(read_dicom_seg, tmp_path / "series" / "000.dcm", series)
    assert "cannot be read" in refusal(read_dicom_seg, tmp_path / "none.dcm", series)
    (tmp_path / "text.dcm").write_text("hello")
    refusal(read_dicom_seg, tmp_path / "text.dcm", series)


@pytest.mark.slow
def test_mutated_segs_give_bad_input_or_labels(tmp_path, series):
    path = tmp_path / "mask.dcm"
    write_dicom_seg(Volume(labels(), PLAIN), series, path, CLASSES)
    content, rng = path.read_bytes(), np.random.default_rng(5)
    refused = passed = 0
    for index in range(200):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(132, len(changed))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed[: rng.integers(len(changed))] if index % 5 == 0 else changed)
        try:
            found = read_dicom_seg(path, series)
        except BadInput as error:
            refused += "\n" not in str(error)
        else:
            passed += found.data.shape == SHAPE and found.data.max() <= 255
    assert refused + passed == 200
    assert refused > 40
    assert passed > 40


def test_without_highdicom(tmp_path, series, monkeypatch):
    monkeypatch.setitem(sys.modules, "highdicom", None)
    path = tmp_path / "mask.dcm"
    line = f"{path}: needs the package highdicom; install fheat[dicom]"
    assert refusal(write_dicom_seg, Volume(labels(), PLAIN), series, path, CLASSES) == line
    assert refusal(read_dicom_seg, path, series) == line


def test_failed_write_keeps_the_old_file(tmp_path, series, monkeypatch):
    path = tmp_path / "out" / "mask.dcm"
    write_dicom_seg(Volume(labels(), PLAIN), series, path, CLASSES)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_dicom_seg(Volume(labels(1), PLAIN), series, path, CLASSES)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["mask.dcm"]
