"""Metrics against medpy, against brute force, and in the cases that are not defined."""

import json

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st
from medpy.metric import binary

import fheat
from fheat.metrics.masks import surface


def blob(rng, shape):
    """A random connected-looking mask: thresholded smooth noise, sometimes touching the border, never empty."""
    field = scipy.ndimage.gaussian_filter(rng.standard_normal(shape), rng.uniform(0.6, 2.5))
    mask = field > np.quantile(field, rng.uniform(0.3, 0.97))
    mask.flat[rng.integers(mask.size)] = True
    return mask


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_equal_to_medpy_on_random_pairs(start):
    for seed in range(start, start + 50):
        rng = np.random.default_rng(seed)
        shape = tuple(rng.integers(3, 24, size=3))
        prediction, reference = blob(rng, shape), blob(rng, shape)
        spacing = None if seed % 3 == 0 else tuple(rng.uniform(0.3, 10.0, size=3))
        found = fheat.evaluate(prediction, reference, spacing)
        assert found.dice == pytest.approx(binary.dc(prediction, reference), abs=1e-6)
        assert found.jaccard == pytest.approx(binary.jc(prediction, reference), abs=1e-6)
        assert found.hd95 == pytest.approx(binary.hd95(prediction, reference, spacing), abs=1e-6)
        assert found.asd == pytest.approx(binary.asd(prediction, reference, spacing), abs=1e-6)
        assert found.assd == pytest.approx(binary.assd(prediction, reference, spacing), abs=1e-6)
        assert found.unit == ("voxels" if spacing is None else "mm")


@given(st.integers(0, 2**31), st.integers(1, 3))
def test_equal_to_brute_force_in_any_dimension(seed, dims):
    rng = np.random.default_rng(seed)
    shape, spacing = rng.integers(1, 7, size=dims), rng.uniform(0.5, 3.0, size=dims)
    prediction, reference = blob(rng, shape), blob(rng, shape)
    cross = scipy.ndimage.generate_binary_structure(dims, 1)
    edges = [mask & ~scipy.ndimage.binary_erosion(mask, cross) for mask in (prediction, reference)]
    assert np.array_equal(surface(prediction), edges[0])
    first, second = (np.argwhere(edge) * spacing for edge in edges)
    table = np.sqrt(((first[:, None] - second[None]) ** 2).sum(-1))
    there, back = table.min(axis=1), table.min(axis=0)
    found = fheat.evaluate(prediction, reference, spacing, tolerance=1.5)
    assert found.hd95 == pytest.approx(np.percentile(np.concatenate([there, back]), 95), abs=1e-9)
    assert found.hd95_max == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)), abs=1e-9)
    assert found.asd == pytest.approx(there.mean(), abs=1e-9)
    assert found.assd == pytest.approx(np.concatenate([there, back]).mean(), abs=1e-9)
    near = ((there <= 1.5).sum() + (back <= 1.5).sum()) / (len(there) + len(back))
    assert found.surface_dice == pytest.approx(near, abs=1e-12)


@pytest.mark.slow
@given(st.integers(0, 2**31))
def test_properties(seed):
    rng = np.random.default_rng(seed)
    shape = rng.integers(2, 12, size=3)
    prediction, reference = blob(rng, shape), blob(rng, shape)
    found, turned = fheat.evaluate(prediction, reference), fheat.evaluate(reference, prediction)
    for name in ("dice", "jaccard", "hd95", "hd95_max", "assd", "surface_dice"):
        assert found[name] == pytest.approx(turned[name], abs=1e-12)
    assert found.jaccard == pytest.approx(found.dice / (2 - found.dice))
    same = fheat.evaluate(reference, reference)
    assert (same.dice, same.hd95, same.assd, same.surface_dice) == (1.0, 0.0, 0.0, 1.0)
    doubled = fheat.evaluate(prediction, reference, (2.0, 2.0, 2.0))
    assert doubled.hd95 == pytest.approx(2 * found.hd95)
    padded = [np.pad(mask, 3) for mask in (prediction, reference)]
    assert fheat.evaluate(*padded).hd95 == pytest.approx(found.hd95)


EMPTY, FULL = np.zeros((4, 4, 4), bool), np.ones((4, 4, 4), bool)


@pytest.mark.parametrize(
    ("prediction", "reference", "case", "overlap"),
    [
        (FULL, FULL, "both", 1.0),
        (EMPTY, FULL, "missed", 0.0),
        (FULL, EMPTY, "spurious", 0.0),
        (EMPTY, EMPTY, "both_empty", 1.0),
    ],
)
def test_the_four_cases(prediction, reference, case, overlap):
    found = fheat.evaluate(prediction, reference)
    assert (found.case, found.dice, found.jaccard) == (case, overlap, overlap)
    for name in ("hd95", "hd95_max", "asd", "assd", "surface_dice"):
        assert (found[name] is None) == (case != "both")
    assert dict(found)["case"] == case


def test_scores_are_plain_data():
    found = fheat.evaluate(FULL, FULL, (1, 1, 1))
    assert json.loads(json.dumps(dict(found)))["dice"] == 1.0


def test_numbers_stand_for_masks():
    labels = np.array([[0, 1, 1], [0, 2, 0]])
    assert fheat.evaluate(labels, labels > 0).dice == 1.0


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((np.ones((3, 3)), np.ones((3, 4))), ValueError, "resample"),
        ((np.ones(0), np.ones(0)), ValueError, "prediction has shape (0,)"),
        ((np.array(["a"]), np.ones(1)), TypeError, "prediction has dtype"),
        ((np.ones((2, 2)), np.full((2, 2), np.nan)), ValueError, "reference holds NaN"),
        ((np.ones((2, 2)), np.ones((2, 2)), (1.0,)), ValueError, "spacing=(1.0,)"),
        ((np.ones((2, 2)), np.ones((2, 2)), (1.0, 0.0)), ValueError, "above 0"),
        ((np.ones((2, 2)), np.ones((2, 2)), (1.0, np.nan)), ValueError, "finite"),
    ],
)
def test_refuses(arguments, error, says):
    with pytest.raises(error) as caught:
        fheat.evaluate(*arguments)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_metric_is_named():
    with pytest.raises(KeyError, match="no metric 'hd96'"):
        fheat.evaluate(FULL, FULL)["hd96"]
