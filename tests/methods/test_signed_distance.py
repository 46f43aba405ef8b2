"""Signed distance maps against SciPy's distance transform."""

import numpy as np
import pytest
import torch
from scipy import ndimage

import fheat.methods.signed_distance as module
from fheat.methods.signed_distance import signed_distances, squared_distances


def literal_map(inside):
    """The protocol's map of one class of one crop: SciPy's transforms, each over its maximum, inner border 0."""
    if inside.all() or not inside.any():
        return np.zeros(inside.shape)
    outer, inner = ndimage.distance_transform_edt(~inside), ndimage.distance_transform_edt(inside)
    border = inside & ~ndimage.binary_erosion(inside, border_value=1)  # beyond the crop is neither
    return np.where(border, 0, outer / outer.max() - inner / inner.max())


@pytest.mark.parametrize("shape", [(24, 17, 9), (1, 30, 2), (5, 5, 40)])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5])
def test_squared_distances_equal_scipy_exactly(shape, share):
    mask = torch.rand(3, *shape) < share
    mask[:, 0, 0, 0] = True  # a nearest voxel may be as far as the opposite corner
    found = squared_distances(mask)
    for one, distances in zip(mask, found, strict=True):
        expected = ndimage.distance_transform_edt(~one.numpy()) ** 2
        assert np.array_equal(distances.numpy(), np.rint(expected))


def test_chunks_do_not_change_the_result(monkeypatch):
    mask = torch.rand(2, 12, 11, 10) < 0.01
    whole = squared_distances(mask)
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", 1)
    assert torch.equal(squared_distances(mask), whole)


def test_without_a_voxel_everything_is_farther_than_any_distance():
    assert (squared_distances(torch.zeros(1, 4, 3, 2, dtype=torch.bool)) == 16 + 9 + 4).all()


@pytest.mark.parametrize("classes", [2, 4])
def test_maps_equal_the_protocol(classes):
    smooth = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(2, 20, 18, 16)), (0, 3, 3, 3))
    cuts = np.quantile(smooth, np.linspace(0.4, 0.9, classes - 1))
    labels = torch.from_numpy(np.digitize(smooth, cuts))
    found = signed_distances(labels.to(torch.uint8), classes)
    assert found.shape == (2, classes - 1, 20, 18, 16)
    for crop in range(2):
        for kind in range(1, classes):
            expected = literal_map((labels[crop] == kind).numpy())
            assert np.abs(found[crop, kind - 1].numpy() - expected).max() < 1e-6
            assert expected.min() < 0 < expected.max()


def test_a_class_without_a_border_has_an_empty_map():
    labels = torch.zeros(2, 6, 5, 4, dtype=torch.int64)
    labels[1] = 1
    assert torch.equal(signed_distances(labels, 3), torch.zeros(2, 2, 6, 5, 4))
