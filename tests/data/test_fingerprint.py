"""The fingerprint: the numbers of nnU-Net, measured on few voxels, are those of all; and the grid of a run."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fheat.data.check import check
from fheat.data.fingerprint import VOXELS, Fingerprint, Intensities, foreground
from fheat.data.grid import SMALLEST_SHARE_OF_SCAN, common_grid, fitting_patch, outline, share_inside, size_on
from fheat.data.layouts import open_dataset
from fheat.data.preprocessing import Preprocessing
from fheat.io import Volume, write_nifti


def volume(shape, spacing=(1.0, 1.0, 1.0), seed=0):
    voxels = np.random.default_rng(seed).normal(100, 20, shape).astype(np.float32)
    return Volume(voxels, np.diag([*spacing, 1.0]))


def block(shape, low=2, high=8):
    label = np.zeros(shape, np.uint8)
    label[low:high, low:high, low:high] = 1
    return label


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("channels", [None, 3])
def test_a_small_label_is_measured_voxel_by_voxel(order, channels):
    scan = volume((10, 11, 12) if channels is None else (10, 11, 12, channels))
    label = np.array(block((10, 11, 12)), order=order)
    sample = foreground(scan, label)
    plain = [scan.data[index] for index in zip(*np.nonzero(label), strict=True)]
    expected = np.array(plain).reshape(len(plain), -1).T
    assert sample.shape == (channels or 1, 6**3)
    assert np.array_equal(np.sort(sample, axis=1), np.sort(expected, axis=1))


def test_a_large_label_is_measured_evenly():
    scan = volume((60, 60, 60))
    label = np.ones((60, 60, 60), np.uint8)
    sample = foreground(scan, label)
    assert sample.shape == (1, VOXELS)
    whole, part = Intensities.of(scan.data), Intensities.of(sample)
    assert part.mean == pytest.approx(whole.mean, abs=1)
    assert part.std == pytest.approx(whole.std, rel=0.05)
    assert part.percentile_99_5 == pytest.approx(whole.percentile_99_5, rel=0.05)
    assert foreground(scan, 0 * label).shape == (1, 0)


def test_intensities_are_those_of_numpy():
    values = np.arange(201, dtype=np.int16)
    assert Intensities.of(values) == Intensities(100.0, 100.0, 58.0230, 0.0, 200.0, 1.0, 199.0)


def test_the_fingerprint_of_a_dataset(tmp_path):
    for index, spacing in enumerate(((1.0, 1.0, 2.0), (1.0, 1.0, 2.0), (1.0, 1.0, 4.0))):
        scan = volume((12, 12, 10), spacing, index)
        write_nifti(scan, tmp_path / "images" / f"{index}.nii.gz")
        write_nifti(Volume(block((12, 12, 10)), scan.affine), tmp_path / "labels" / f"{index}.nii.gz")
    report = check(open_dataset(tmp_path))
    facts = json.loads(json.dumps(report.to_json()))["fingerprint"]
    assert facts["spacings"] == [[1, 1, 2], [1, 1, 2], [1, 1, 4]]
    assert facts["shapes"] == [[12, 12, 10]] * 3
    assert facts["target_spacing"] == [1, 1, 2]
    assert report.fingerprint.sizes == ((12, 12, 10), (12, 12, 10), (12, 12, 20))
    assert facts["median_image_size_in_voxels"] == [12, 12, 10]
    inside = [volume((12, 12, 10), seed=seed).data[2:8, 2:8, 2:8] for seed in range(3)]
    (measured,) = facts["foreground_intensity_properties_per_channel"].values()
    assert measured["mean"] == pytest.approx(np.mean(inside), rel=1e-5)
    assert measured["percentile_00_5"] == pytest.approx(np.percentile(inside, 0.5), rel=1e-5)
    assert (facts["looks_like_ct"], facts["window"]) == (False, None)


@pytest.mark.parametrize(
    ("lowest", "channels", "window"), [(-1000.0, 1, (1.0, 199.0)), (0.0, 1, None), (-1000.0, 2, None)]
)
def test_a_window_is_for_ct_alone(lowest, channels, window):
    sample = np.tile(np.arange(201, dtype=np.float32), (channels, 1))
    made = Fingerprint.of([outline(volume((8, 8, 8)))], [sample], lowest)
    assert made.window == window


def test_a_dataset_without_labels_has_no_intensities():
    made = Fingerprint.of([outline(volume((8, 8, 8)))], [], -1000.0)
    assert (made.foreground, made.window) == ((), None)


@settings(max_examples=100)
@given(
    sizes=st.lists(st.tuples(*[st.integers(16, 200)] * 3), min_size=1, max_size=4),
    patch=st.tuples(*[st.integers(2, 10).map(lambda n: 16 * n)] * 3),
)
def test_a_fitting_patch_fits(sizes, patch):
    fitting = fitting_patch(sizes, patch)
    assert all(share_inside(size, fitting) >= SMALLEST_SHARE_OF_SCAN for size in sizes)
    assert all(new <= old for new, old in zip(fitting, patch, strict=True))
    if all(share_inside(size, patch) >= SMALLEST_SHARE_OF_SCAN for size in sizes):
        assert fitting == patch
    else:
        assert all(side % 16 == 0 for side in fitting)


@settings(max_examples=30)
@given(
    shape=st.tuples(*[st.integers(4, 12)] * 3),
    spacing=st.tuples(*[st.floats(0.5, 3)] * 3),
    target=st.tuples(*[st.floats(0.5, 3)] * 3),
)
def test_sizes_on_a_grid_are_those_of_prepared_scans(shape, spacing, target):
    scan = volume(shape, spacing)
    grid = common_grid([scan], Preprocessing(spacing=target, orientation="LPS"))
    assert size_on(outline(scan), grid) == grid.image(scan).shape
