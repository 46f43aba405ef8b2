"""RT Structure Sets: the voxels whose centres lie inside the contours are the mask, by either rule of readers."""

import numpy as np
import pytest

pytest.importorskip("highdicom")

import itertools

import contourpy
import pydicom

from fheat import BadInput
from fheat.io import Volume
from fheat.io.codes import ANATOMY, LEFT, Code, SegmentCode
from fheat.io.dicom import LPS_TO_RAS, read_dicom
from fheat.io.rtstruct import outlines, write_rtstruct
from tests.grids import oblique
from tests.io.dicom_series import save, scan, slices

CLASSES = ("background", "left atrium", "wall", "absent")
SHAPE = (20, 16, 6)


def windings(rings, shape):
    """Return, for the centre of every voxel, how often contours cross a ray to the right, and how often they wind."""
    rows, columns = np.mgrid[: shape[0], : shape[1]].astype(float)
    crossed, wound = np.zeros(shape, int), np.zeros(shape, int)
    for ring in rings:
        for (x, y), (u, v) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                right = columns < x + (u - x) * (rows - y) / (v - y)
            up, down = (y <= rows) & (rows < v) & right, (v <= rows) & (rows < y) & right
            crossed += up | down
            wound += up.astype(int) - down
    return crossed, wound


def with_holes(seed, shape=(24, 20)):
    """Return a random slice whose voxels are inside with a probability between a tenth and nine tenths."""
    rng = np.random.default_rng(seed)
    return rng.random(shape) < 0.1 + 0.8 * (seed % 9) / 8


def area(ring):
    x, y = ring.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


@pytest.mark.parametrize("count", [27, pytest.param(200, marks=pytest.mark.slow)])
def test_random_slices_with_holes_come_back_voxel_by_voxel(count):
    holes = 0
    for seed in range(count):
        inside = with_holes(seed)
        rings = list(outlines(inside))
        crossed, wound = windings(rings, inside.shape)
        assert np.array_equal(crossed % 2 == 1, inside)
        assert np.array_equal(wound != 0, inside)  # a reader that counts windings gets the same
        assert set(np.unique(np.abs(wound))) <= {0, 1}
        points, offsets = contourpy.contour_generator(
            z=np.pad(inside, 1).astype(float), fill_type="OuterOffset"
        ).filled(0.5, 2.0)
        holes += sum(len(parts) - 2 for parts in offsets)
        drawn = [points[k][a:b] for k, parts in enumerate(offsets) for a, b in itertools.pairwise(parts)]
        assert sum(map(area, rings)) == pytest.approx(sum(area(ring[:-1]) for ring in drawn), abs=1e-9)
        for ring in rings:
            assert len(ring) >= 3
            assert (ring != np.roll(ring, 1, axis=0)).any(axis=1).all()  # no point twice in a row, none repeated
    assert holes > 5 * count


def test_nested_rings_and_the_edge_of_the_slice():
    inside = np.ones((15, 15), bool)
    inside[2:13, 2:13] = False
    inside[4:11, 4:11] = True
    inside[6:9, 6:9] = False
    inside[7, 7] = True
    rings = list(outlines(inside))
    assert len(rings) == 3  # each ring with its hole, and the voxel in the middle
    assert np.array_equal(windings(rings, inside.shape)[0] % 2 == 1, inside)
    assert list(outlines(np.zeros((4, 4), bool))) == []


@pytest.fixture
def series(tmp_path):
    affine = np.eye(4)
    affine[:3, :3] = oblique(17) @ np.diag([0.625, 0.5, 1.25])
    affine[:3, 3] = -31.5, 12.25, 7.0
    return read_dicom(save(slices(scan(SHAPE), affine), tmp_path / "series"))


def test_a_mask_comes_back_from_the_file(tmp_path, series):
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 3, SHAPE).astype(np.uint8)
    mask[:, :, 4] = 0
    modified = SegmentCode(category=ANATOMY, type=Code(value="64033007", meaning="Kidney"), modifiers=(LEFT,))
    write_rtstruct(Volume(mask, series.volume.affine), series, tmp_path / "mask.dcm", CLASSES, codes={2: modified})
    stored = pydicom.dcmread(tmp_path / "mask.dcm")
    assert stored.file_meta.TransferSyntaxUID == pydicom.uid.ImplicitVRLittleEndian
    assert (stored.Modality, stored.ApprovalStatus) == ("RTSTRUCT", "UNAPPROVED")
    assert stored.FrameOfReferenceUID == series.sources[0].FrameOfReferenceUID
    assert stored.StudyInstanceUID == series.sources[0].StudyInstanceUID
    assert stored.PatientName == "Phantom^Synthetic"
    (frame,) = stored.ReferencedFrameOfReferenceSequence
    held = frame.RTReferencedStudySequence[0].RTReferencedSeriesSequence[0]
    images = [source.SOPInstanceUID for source in series.sources]
    assert [item.ReferencedSOPInstanceUID for item in held.ContourImageSequence] == images
    assert held.SeriesInstanceUID == series.sources[0].SeriesInstanceUID
    numbers = [one.ROINumber for one in stored.StructureSetROISequence]
    assert numbers == [one.ReferencedROINumber for one in stored.ROIContourSequence] == [1, 2, 3]
    assert numbers == [one.ReferencedROINumber for one in stored.RTROIObservationsSequence]
    assert [one.ROIName for one in stored.StructureSetROISequence] == list(CLASSES[1:])
    kinds = [one.RTROIIdentificationCodeSequence[0].CodeValue for one in stored.RTROIObservationsSequence]
    assert kinds == ["82471001", "64033007", "85756007"]
    back = np.linalg.inv(LPS_TO_RAS @ series.volume.affine)
    for value, roi in zip(numbers, stored.ROIContourSequence, strict=True):
        rings = {index: [] for index in range(SHAPE[2])}
        for contour in roi.ContourSequence:
            assert contour.ContourGeometricType == "CLOSED_PLANAR"
            assert contour.NumberOfContourPoints * 3 == len(contour.ContourData)
            assert all(len(number.original_string) <= 16 for number in contour.ContourData)
            points = np.array(contour.ContourData, float).reshape(-1, 3)
            ring = points @ back[:3, :3].T + back[:3, 3]
            (index,) = set(np.rint(ring[:, 2]).astype(int))
            assert np.abs(ring[:, 2] - index).max() < 1e-6
            assert contour.ContourImageSequence[0].ReferencedSOPInstanceUID == images[index]
            rings[index].append(ring[:, :2])
        for index, drawn in rings.items():
            crossed, _ = windings(drawn, (SHAPE[1], SHAPE[0]))
            assert np.array_equal(crossed.T % 2 == 1, mask[:, :, index] == value)


def test_a_long_contour_keeps_its_type(tmp_path):
    """Its text has more than 64 KiB, which explicit types would not hold."""
    shape = (96, 96, 2)
    series = read_dicom(save(slices(scan(shape), np.diag([0.6251, 0.6251, 1.25, 1.0])), tmp_path / "series"))
    mask = np.zeros(shape, np.uint8)
    mask[::2, :, 0] = mask[:, 0, 0] = 1  # a comb
    write_rtstruct(Volume(mask, series.volume.affine), series, tmp_path / "mask.dcm", ("background", "comb"))
    (contour,) = pydicom.dcmread(tmp_path / "mask.dcm").ROIContourSequence[0].ContourSequence
    assert sum(len(str(number)) + 1 for number in contour.ContourData) > 2**16
    assert contour["ContourData"].VR == "DS"


def test_a_mask_of_another_grid_is_refused(tmp_path, series):
    with pytest.raises(BadInput, match=r"mask\.dcm: mask has shape \(2, 2, 2\), the series \(20, 16, 6\)"):
        write_rtstruct(Volume(np.zeros((2, 2, 2), np.uint8), np.eye(4)), series, tmp_path / "mask.dcm", CLASSES)
