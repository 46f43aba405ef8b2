"""DICOM SEG in `fheat evaluate`: the scores are those of the same masks as NIfTI, whatever part a SEG covers."""

import json

import nibabel
import numpy as np
import pytest

pytest.importorskip("highdicom")

from fheat import BadInput
from fheat.cli.main import main
from fheat.io import Volume, read_volume, trusting, write_nifti
from fheat.io.dicom import read_dicom
from fheat.io.dicom_seg import write_dicom_seg
from fheat.metrics.evaluate import METRICS
from fheat.metrics.files import evaluate_files
from fheat.metrics.grids import on_one_grid
from tests.io.dicom_series import affines, save, scan, slices

SHAPE = (14, 12, 9)
AFFINE = np.diag([-0.75, -1.5, 2.0, 1.0])
NAMES = ("background", "one", "two")


@pytest.fixture
def masks(tmp_path):
    """Write a prediction and a reference that leave out slices at both ends, as SEG and as NIfTI."""
    series = read_dicom(save(slices(scan(SHAPE), AFFINE), tmp_path / "series"))
    rng = np.random.default_rng(0)
    for side, planes in (("pred", slice(2, 6)), ("ref", slice(3, 8))):
        data = np.zeros(SHAPE, np.uint8)
        data[3:10, 2:9, planes] = rng.integers(0, 3, data[3:10, 2:9, planes].shape)
        mask = Volume(data, series.volume.affine)
        write_nifti(mask, tmp_path / side / "a.nii.gz")
        (tmp_path / f"{side}-seg").mkdir()
        write_dicom_seg(mask, series, tmp_path / f"{side}-seg" / "a.dcm", NAMES)
        turned = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, mask.affine))
        write_nifti(Volume(np.asarray(turned.dataobj), turned.affine), tmp_path / f"{side}-ras" / "a.nii.gz")
    return tmp_path


def scores(table):
    return [[row.scores[name] for name in METRICS] for row in table.rows]


@pytest.mark.parametrize(
    ("pred", "ref"),
    [
        ("pred-seg", "ref"),
        ("pred", "ref-seg"),
        ("pred-seg", "ref-seg"),
        ("pred-seg", "ref-ras"),
        ("pred-ras", "ref-seg"),
    ],
)
def test_scores_are_those_of_the_same_masks_as_nifti(masks, pred, ref):
    expected = scores(evaluate_files(masks / "pred", masks / "ref", workers=1))
    table = evaluate_files(masks / pred, masks / ref, workers=1)
    assert not table.refused
    assert [row.label for row in table.rows] == ["1", "2"]
    assert np.allclose(scores(table), expected, rtol=1e-6)


def test_a_seg_is_read_in_the_confined_process_as_in_this_one(masks):
    confined = read_volume(masks / "pred-seg" / "a.dcm")
    with trusting():
        here = read_volume(masks / "pred-seg" / "a.dcm")
    assert np.array_equal(confined.data, here.data)
    assert np.array_equal(confined.affine, here.affine)
    assert confined.data.shape == (14, 12, 4)  # slices 2 to 5
    whole = read_volume(masks / "pred" / "a.nii.gz")
    assert np.array_equal(whole.data[:, :, 2:6], confined.data)


def test_the_verb_takes_two_files(masks, capsys):
    words = ["evaluate", str(masks / "pred-seg" / "a.dcm"), str(masks / "ref" / "a.nii.gz"), "--json"]
    assert main(words) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in content["rows"]] == ["a", "a"]
    assert main(["evaluate", str(masks / "series" / "000.dcm"), str(masks / "ref" / "a.nii.gz")]) == 3
    assert "field SOPClassUID is CT Image Storage: not a DICOM SEG; give a SEG, a NIfTI file" in capsys.readouterr().err


def test_every_orientation_lands_on_the_other_grid():
    data = np.zeros((9, 8, 7), np.uint8)
    data[2:5, 1:6, 3:6] = np.random.default_rng(1).integers(1, 4, (3, 5, 3))
    whole = Volume(data, next(affines(spacings=((0.7, 0.5, 1.25),), angles=(17,))))
    part = Volume(
        data[1:6, 1:7, 3:7], whole.affine @ np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 3], [0, 0, 0, 1]])
    )
    image = nibabel.Nifti1Image(part.data, part.affine)
    for codes in ("RAS", "LPI", "ASR", "SLA", "IPL", "PIR"):
        change = nibabel.orientations.ornt_transform(
            nibabel.io_orientation(part.affine), nibabel.orientations.axcodes2ornt(codes)
        )
        turned = image.as_reoriented(change)
        first, second = on_one_grid(Volume(np.asarray(turned.dataobj), turned.affine), whole, (True, False))
        assert np.array_equal(first.data, data)
        assert np.array_equal(second.data, data)
        assert np.array_equal(first.affine, whole.affine)


def test_voxels_between_voxels_or_outside_are_refused(masks):
    seg = read_volume(masks / "pred-seg" / "a.dcm")
    whole = read_volume(masks / "ref" / "a.nii.gz")
    moved = seg.affine.copy()
    moved[0, 3] += 0.3
    with pytest.raises(ValueError, match="do not lie on those of the other mask"):
        on_one_grid(Volume(seg.data, moved), whole, (True, False))
    later = Volume(whole.data[:, :, 4:], whole.affine @ nibabel.affines.from_matvec(np.eye(3), [0, 0, 4]))
    with pytest.raises(ValueError, match="labelled voxels outside"):
        on_one_grid(seg, later, (True, False))
    write_nifti(Volume(whole.data, moved), masks / "off" / "a.nii.gz")
    table = evaluate_files(masks / "pred-seg", masks / "off", labels={"one": (1,)}, workers=1)
    assert "do not lie on those of the other mask; give masks of one scan" in table.refused["a"]
    with pytest.raises(BadInput, match=r"holds no \.nii, \.nii\.gz or \.dcm file"):
        evaluate_files(masks / "pred", masks)


def test_maps_beside_a_mask_are_no_predictions(masks):
    for name in ("a_probabilities.nii.gz", "a_uncertainty.nii.gz", "b_uncertainty.nii.gz"):
        (masks / "pred" / name).touch()
    table = evaluate_files(masks / "pred", masks / "ref", workers=1)
    assert table.notes == ("predictions without a reference: b_uncertainty.nii.gz",)


def test_masks_far_apart_are_refused_before_a_grid_is_made():
    far = np.eye(4)
    far[2, 3] = 100_000
    masks = [Volume(np.ones((8, 8, 2), np.uint8), affine) for affine in (np.eye(4), far)]
    with pytest.raises(ValueError, match="too far from the other mask"):
        on_one_grid(masks[0], masks[1], (True, True))
