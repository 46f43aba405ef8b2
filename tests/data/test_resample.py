"""Resampling and reorientation: against scipy and nibabel, and what must not change."""

import itertools

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nibabel import orientations
from scipy import ndimage

from fheat.data.orientation import reorient, view_as
from fheat.data.resample import coordinates, interpolate, nearest, resample, steps_between, target_size
from fheat.io import Volume
from tests.grids import affines

STEPS = st.floats(0.2, 5.0)


@given(size=st.integers(1, 60), step=STEPS)
def test_grids_share_their_centre_and_mirror(size, step):
    target = target_size(size, step)
    where = coordinates(size, step, target)
    assert where.mean() == pytest.approx((size - 1) / 2)
    assert np.allclose(where[::-1], size - 1 - where)
    assert target == 1 or np.diff(where) == pytest.approx(step)
    assert abs(target * step - size) <= max(0.5 * step, step - size) + 1e-9


@given(size=st.integers(1, 40), step=STEPS, seed=st.integers(0, 99))
def test_interpolation_is_scipys(size, step, seed):
    x = np.random.default_rng(seed).normal(size=(3, size, 2)).astype(np.float32)
    where = coordinates(size, step, target_size(size, step))
    places = np.meshgrid(np.arange(3), where, np.arange(2), indexing="ij")
    oracle = ndimage.map_coordinates(x.astype(np.float64), places, order=1, mode="nearest")
    assert np.allclose(interpolate(torch.from_numpy(x), 1, where).numpy(), oracle, atol=1e-5)


@given(size=st.integers(1, 12), first=st.integers(-3, 12), count=st.integers(0, 15), shift=st.sampled_from([0, 0.25]))
def test_whole_indices_inside_are_a_view(size, first, count, shift):
    x = torch.arange(2.0 * size).reshape(2, size)
    where = np.arange(first, first + count) + shift
    found = interpolate(x, 1, where)
    assert np.array_equal(found[0], where.clip(0, size - 1))
    inside = count > 0 and shift == 0 and first >= 0 and first + count <= size
    assert (found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == inside


@given(size=st.integers(1, 40), step=STEPS)
def test_nearest_is_nearest(size, step):
    where = coordinates(size, step, target_size(size, step))
    found = nearest(np.arange(2 * size).reshape(2, size), 1, where)[0]
    least = np.abs(where[:, None] - np.arange(size)).min(axis=1)
    assert np.allclose(np.abs(where - found), least, atol=1e-9)


def test_halfway_goes_to_the_even_voxel_and_beyond_the_border_is_the_border():
    where = np.array([-3.0, -0.4, 0.5, 1.5, 2.5, 3.49, 3.51, 9.0])
    assert nearest(np.arange(5), 0, where).tolist() == [0, 0, 0, 2, 2, 3, 4, 4]


def test_resample_keeps_every_physical_place():
    """A ramp over physical space is linear, so away from the border it must come out exactly."""
    for affine, spacing in affines():
        shape = (14, 12, 11)
        index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
        place = index @ affine[:3, :3].T + affine[:3, 3]
        found = resample(Volume(place.astype(np.float32), affine), tuple(0.8 * step for step in spacing))
        assert found.spacing == pytest.approx(tuple(0.8 * step for step in spacing))
        targets = np.stack(np.meshgrid(*map(np.arange, found.data.shape[:3]), indexing="ij"), axis=-1)
        expected = targets @ found.affine[:3, :3].T + found.affine[:3, 3]
        inner = (slice(1, -1),) * 3
        assert np.abs(found.data[inner] - expected[inner]).max() < 1e-3


def test_a_resampled_volume_has_memory_of_its_own():
    """Also where all that is left of an axis is its middle voxel, which needs no interpolation."""
    data = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    for spacing in ((3.0, 1.0, 1.0), (1.0, 3.0, 1.0), (1.0, 1.0, 3.0), (2.0, 1.0, 1.0)):
        found = resample(Volume(data, np.eye(4)), spacing)
        assert found.data.size < data.size
        assert not np.shares_memory(found.data, data)


def test_labels_stay_labels_and_equal_spacing_is_the_identity():
    labels = np.random.default_rng(0).choice([0, 3, 7], size=(9, 8, 7)).astype(np.uint8)
    volume = Volume(labels, np.diag([1.0, 2.0, 3.0, 1.0]))
    finer = resample(volume, (0.5, 1.0, 1.0), labels=True)
    assert finer.data.dtype == np.uint8
    assert finer.data.shape == (18, 16, 21)
    assert set(np.unique(finer.data)) == {0, 3, 7}
    back = resample(finer, volume.spacing, labels=True)
    assert np.mean(back.data == labels) > 0.3
    assert np.array_equal(resample(finer, (0.5, 1.0, 3.0), labels=True).data[:, :, 3], finer.data[:, :, 10])
    assert resample(volume, (1.0, 2.0, 3.0)) is volume
    assert steps_between((1, 1, 1), (1.0005, 2, 1)) == (1.0, 2.0, 1.0)
    assert steps_between((1, 2, 3), None) == (1.0, 1.0, 1.0)


def test_reorientation_equals_nibabel_in_every_orientation():
    rng = np.random.default_rng(0)
    for affine, _ in affines():
        volume = Volume(rng.normal(size=(4, 5, 6)), affine)
        turned = reorient(volume, "RAS")
        oracle = nibabel.as_closest_canonical(nibabel.Nifti1Image(volume.data, affine))
        assert np.array_equal(turned.data, np.asarray(oracle.dataobj))
        assert np.allclose(turned.affine, oracle.affine)
        assert turned.orientation == "RAS"
        assert np.shares_memory(turned.data, volume.data)
    codes = [
        "".join(letters) for axes in itertools.permutations(("LR", "PA", "IS")) for letters in itertools.product(*axes)
    ]
    assert len(codes) == 48
    for code in codes:
        assert reorient(volume, code).orientation == code


def test_writing_goes_through_the_view():
    affine = np.array([[0, -2.0, 0, 0], [0, 0, 3.0, 0], [-1.0, 0, 0, 0], [0, 0, 0, 1]])
    stored = np.zeros((3, 4, 5))
    view = view_as(affine, "RAS")(stored)
    assert view.shape == (4, 5, 3)
    view[0, 1, 2] = 1
    change = orientations.ornt_transform(nibabel.io_orientation(affine), orientations.axcodes2ornt("RAS"))
    assert np.array_equal(orientations.apply_orientation(stored, change), view)
    assert stored.sum() == 1


@pytest.mark.parametrize("codes", ["", "RA", "RAX", "RRS", "RASI", "LRS"])
def test_codes_that_are_none(codes):
    with pytest.raises(ValueError, match="such as 'RAS'"):
        reorient(Volume(np.zeros((2, 2, 2)), np.eye(4)), codes)
