"""Whether two volumes share their voxels, and whether a file keeps the place of its own."""

import nibabel
import numpy as np
import pytest

from fheat.io import Volume, read_nifti, write_nifti
from fheat.io.volume import APART, grid_difference
from tests.grids import affines, oblique


def volume(shape=(20, 16, 12), spacing=(1.0, 1.0, 1.0), origin=(0.0, 0.0, 0.0), turn=0.0):
    affine = np.diag([*spacing, 1.0])
    affine[:3, :3] = oblique(turn) @ affine[:3, :3]
    affine[:3, 3] = origin
    return Volume(np.broadcast_to(np.uint8(0), shape), affine)


def differing_field(one, other):
    """The same both ways, values swapped."""
    there, back = grid_difference(one, other), grid_difference(other, one)
    if there is None:
        assert back is None
        return None
    assert (there.field, there.first, there.second) == (back.field, back.second, back.first)
    assert there.first != there.second
    return there.field


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        ({}, {}, None),
        ({}, {"shape": (20, 16, 11)}, "shape"),
        ({}, {"spacing": (1.0, 1.0, 1.1)}, "spacing"),
        ({}, {"spacing": (-1.0, 1.0, 1.0)}, "orientation"),
        ({}, {"turn": 2.0}, "orientation"),
        ({}, {"origin": (0.0, -3.0, 0.0)}, "origin"),
        ({"origin": (500.0, 0.0, 0.0)}, {"origin": (500.04, 0.0, 0.0)}, None),
        ({}, {"origin": (0.0, 0.0, 0.06)}, "origin"),
        # Nothing at one voxel, two and a half voxels at the far end.
        ({"shape": (512, 512, 40)}, {"shape": (512, 512, 40), "spacing": (1.0049, 1.0, 1.0)}, "spacing"),
        ({"shape": (512, 9, 9)}, {"shape": (512, 9, 9), "spacing": (1.0049, 1, 1), "origin": (0, 1, 0)}, "spacing"),
        ({"shape": (512, 512, 40)}, {"shape": (512, 512, 40), "spacing": (1.00009, 1.0, 1.0)}, None),
        ({"shape": (512, 512, 40)}, {"shape": (512, 512, 40), "turn": 0.05}, "orientation"),
        # Small voxels: a tenth of a millimetre is four and a half of them.
        ({"spacing": (0.02,) * 3}, {"spacing": (0.02,) * 3, "origin": (0.09, 0.0, 0.0)}, "origin"),
        ({"spacing": (0.02,) * 3}, {"spacing": (0.02,) * 3, "origin": (0.0008, 0.0, 0.0)}, None),
        # The smallest spacing counts, along whichever axis the difference lies.
        ({"spacing": (5.0, 0.5, 5.0)}, {"spacing": (5.0, 0.5, 5.0), "origin": (0.04, 0.0, 0.0)}, "origin"),
        ({"spacing": (5.0, 0.5, 5.0)}, {"spacing": (5.0, 0.5, 5.0), "origin": (0.02, 0.0, 0.0)}, None),
    ],
)
def test_the_field_that_differs_is_named(one, other, field):
    assert differing_field(volume(**one), volume(**other)) == field


def test_every_corner_counts_in_every_orientation():
    """Growing about a corner moves the opposite one alone; the share of a voxel it may move is the same everywhere."""
    shape = np.array((30, 20, 10))
    for affine, spacing in affines():
        here = Volume(volume(shape).data, affine)
        for axis in range(3):
            for share, accepted in ((0.9, True), (1.2 * np.sqrt(3), False)):
                moved = share * APART * min(spacing) / spacing[axis]
                grown = affine.copy()
                grown[:3, axis] *= 1 + moved / (shape[axis] - 1)
                assert (differing_field(here, Volume(here.data, grown)) is None) == accepted


def test_values_are_those_of_each_and_channels_do_not_count():
    image = Volume(np.zeros((5, 4, 3, 2)), np.diag([1.0, 2.0, 3.0, 1.0]))
    assert grid_difference(image, volume((5, 4, 3), (1.0, 2.0, 3.0))) is None
    found = grid_difference(image, volume((5, 4, 3), (1.0, 2.0, 3.5)))
    assert (found.field, found.first, found.second) == ("spacing", "(1, 2, 3)", "(1, 2, 3.5)")
    found = grid_difference(image, volume((5, 4, 3), (1.0, 2.0, 3.0), (0.0, 7.0, 0.0)))
    assert (found.field, found.first, found.second) == ("origin", "(0, 0, 0)", "(0, 7, 0)")
    found = grid_difference(image, volume((5, 4, 3), (-1.0, 2.0, 3.0)))
    assert (found.field, found.first, found.second) == ("orientation", "RAS", "LAS")
    found = grid_difference(image, volume((4, 4, 3), (1.0, 2.0, 3.0)))
    assert (found.field, found.first, found.second) == ("shape", "(5, 4, 3)", "(4, 4, 3)")


@pytest.mark.parametrize(("unit", "factor"), [("meter", 1000.0), ("micron", 0.001), ("mm", 1.0), ("unknown", 1.0)])
def test_files_in_other_units_come_in_millimetres(tmp_path, unit, factor):
    affine = np.diag([0.5, 0.25, 0.75, 1.0])
    affine[:3, 3] = 8, -4, 2
    stated = affine.copy()
    stated[:3] /= factor
    image = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(5, 4, 3), stated)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "scan.nii")
    scan = read_nifti(tmp_path / "scan.nii")
    assert np.allclose(scan.affine, affine, rtol=1e-6)
    write_nifti(scan, tmp_path / "again.nii")
    assert grid_difference(scan, read_nifti(tmp_path / "again.nii")) is None


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("length", [32767, 32768, 40000])
def test_axes_longer_than_the_first_version_of_the_format_can_state(tmp_path, ending, length):
    data = (np.arange(2 * length) % 251).astype(np.uint8).reshape(1, length, 2)
    long = Volume(data, np.diag([1.0, 0.01, 2.0, 1.0]))
    write_nifti(long, tmp_path / f"long{ending}")
    again = read_nifti(tmp_path / f"long{ending}")
    assert np.array_equal(again.data, data)
    assert grid_difference(long, again) is None
