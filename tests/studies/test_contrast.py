"""Gradients along boundaries: edges of known slope, bands voxel by voxel, and the paired test against scipy."""

import numpy as np
import pytest
import scipy.stats

from fheat.metrics.statistics import signed_rank
from fheat.studies.contrast import boundary_gradient, contrasts, gradient_magnitude


def slow_band(region):
    """Voxels of the region with a face neighbour that is outside it or outside the array."""
    band = []
    for place in np.argwhere(region):
        for axis in range(3):
            for step in (-1, 1):
                near = place.copy()
                near[axis] += step
                if not all(0 <= near[a] < region.shape[a] for a in range(3)) or not region[tuple(near)]:
                    band.append(tuple(place))
    return sorted(set(band))


def test_a_ramp_has_its_slope_everywhere():
    x, y, z = np.meshgrid(*(np.arange(n) for n in (9, 8, 7)), indexing="ij")
    ramp = 3.0 * x - 4.0 * z
    assert gradient_magnitude(ramp) == pytest.approx(5)
    assert gradient_magnitude(ramp, (0.5, 1, 2)) == pytest.approx(np.hypot(6, 2))
    region = (x > 2) & (x < 6) & (y > 2) & (z > 1)
    assert boundary_gradient(ramp, region) == pytest.approx(5)
    assert gradient_magnitude(ramp[:, :, :1]) == pytest.approx(3)


def test_a_step_of_known_height():
    """Central differences see half of a step on either side of it."""
    image = np.zeros((12, 12, 12))
    image[:6] = 10.0
    half = np.zeros(image.shape, bool)
    half[:6] = True
    edge = np.zeros(image.shape, bool)
    edge[5] = True
    assert boundary_gradient(image, edge) == 5
    assert boundary_gradient(image, edge, (2.0, 1.0, 1.0)) == 2.5
    band = slow_band(half)
    expected = np.mean([5.0 if place[0] == 5 else 0.0 for place in band])
    assert boundary_gradient(image, half) == pytest.approx(expected)


def test_the_crop_changes_nothing():
    rng = np.random.default_rng(0)
    image = rng.normal(size=(11, 10, 9))
    for region in (rng.random(image.shape) < 0.3, rng.random(image.shape) < 0.01, np.ones(image.shape, bool)):
        everywhere = gradient_magnitude(image, (0.5, 1.5, 1.0))
        expected = np.mean([everywhere[place] for place in slow_band(region)])
        assert boundary_gradient(image, region, (0.5, 1.5, 1.0)) == pytest.approx(expected, rel=1e-12)


def test_integers_do_not_wrap():
    image = np.zeros((6, 6, 6), np.uint8)
    image[3:] = 200
    edge = np.zeros(image.shape, bool)
    edge[3] = True
    assert boundary_gradient(image, edge) == 100


def test_what_is_missing_or_does_not_fit():
    image = np.zeros((4, 4, 4))
    assert boundary_gradient(image, np.zeros(image.shape, bool)) is None
    with pytest.raises(ValueError, match="differ in shape"):
        boundary_gradient(image, np.zeros((4, 4, 5), bool))
    with pytest.raises(ValueError, match="2 numbers for 3 axes"):
        gradient_magnitude(image, (1, 1))


def test_regions_are_compared_over_the_cases_that_have_both():
    rng = np.random.default_rng(1)
    weak, sharp = rng.uniform(1, 2, 20), rng.uniform(1.5, 3, 20)
    t1gd = [{"core": a, "rim": b} for a, b in zip(weak, sharp, strict=True)]
    flair = [{"core": b, "rim": a} for a, b in zip(weak, sharp, strict=True)]
    empty = {"core": 5.0, "rim": None}
    first, second = contrasts({"T1gd": [*t1gd, empty], "FLAIR": [empty, *flair]}, "core", "rim")
    assert (first.modality, first.n, second.n) == ("T1gd", 20, 20)
    assert first.ratio == pytest.approx(sharp.mean() / weak.mean()) == pytest.approx(1 / second.ratio)
    assert (first.first_mean, first.second_mean) == pytest.approx((weak.mean(), sharp.mean()))
    expected = scipy.stats.wilcoxon(sharp, weak).pvalue
    assert first.p == pytest.approx(expected)
    assert first.p_holm == pytest.approx(min(1, 2 * expected))


def test_nothing_to_compare():
    (found,) = contrasts({"T1": [{"a": None, "b": 1.0}]}, "a", "b")
    assert (found.n, found.p, found.ratio, found.p_holm) == (0, None, None, None)
    assert signed_rank([]) is None
    assert signed_rank([0.0, 0.0]) == 1.0
    (flat,) = contrasts({"T1": [{"a": 0.0, "b": 0.0}] * 3}, "a", "b")
    assert (flat.n, flat.p, flat.ratio) == (3, 1.0, None)
