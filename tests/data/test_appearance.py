"""What training scans look like: never unlike themselves, blind to scale where the network is, awake to the rest."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fheat.data.appearance import (
    LENGTH_FACTOR,
    QUANTILES,
    SHARE_MARGIN,
    SPAN_MARGIN,
    Appearance,
    Looks,
    Range,
    Unusual,
    unusual_text,
)
from fheat.data.orientation import reorient
from fheat.data.phantom import phantom
from fheat.data.preprocessing import Intensity, Preprocessing
from fheat.io import Volume

SCANS = [phantom(seed, (40, 36, 34)).image for seed in range(4)]
KINDS = {
    "zscore": Intensity(kind="zscore"),
    "nonzero": Intensity(kind="zscore", nonzero=True),
    "window": Intensity(kind="window", low=100, high=500),
    "none": Intensity(),
}


def looks(volume, kind="zscore", **grid):
    return Looks.of(Preprocessing(orientation="RAS", intensity=KINDS[kind], **grid).scan(volume))


def ranges(kind="zscore"):
    return Appearance.of(looks(scan, kind) for scan in SCANS)


def quantities(volume, kind="zscore"):
    return [one.quantity for one in ranges(kind).unusual(looks(volume, kind))]


def changed(data=None, affine=None):
    """Return the first training scan with other voxels or in another place."""
    return Volume(SCANS[0].data if data is None else data, SCANS[0].affine if affine is None else affine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_scan_is_never_unusual_however_it_is_turned(kind):
    for scan in SCANS:
        assert quantities(scan, kind) == []
        assert quantities(reorient(scan, "PIR"), kind) == []


@given(st.integers(0, 2**32), st.floats(1e-3, 1e6), st.sampled_from(list(KINDS)))
@examples(max_examples=60)
def test_one_training_scan_of_any_scale_is_not_unlike_itself(seed, scale, kind):
    """Bounds that are rounded, and those without any margin, still hold the scan that they come from."""
    rng = np.random.default_rng(seed)
    constant = rng.integers(2) == 0
    data = np.full((5, 6, 7), scale) if constant else scale * rng.standard_normal((5, 6, 7))
    scan = looks(Volume(data, np.diag([*rng.uniform(0.1, 9, 3), 1])), kind)
    assert Appearance.of([scan]).unusual(scan) == []


def test_the_quantities_are_those_of_all_voxels():
    scan = SCANS[1]
    turned = reorient(scan, "RAS")
    data = (turned.data - scan.data.mean()) / scan.data.std()
    found = looks(scan)
    assert found.lengths[0] == pytest.approx(turned.spacing)
    assert found.lengths[1] == pytest.approx(np.array(turned.spacing) * turned.data.shape)
    assert data.size < 2**16  # small enough for every voxel to count
    inner = data[(data > data.min()) & (data < data.max())]
    assert found.quantiles[0] == pytest.approx(np.quantile(inner, QUANTILES), abs=1e-6)
    assert found.shares[0] == pytest.approx([(data == data.min()).mean(), (data == data.max()).mean()])


def test_a_large_scan_is_measured_on_some_of_its_voxels():
    scan = phantom(3, (112, 96, 72), geometry="canonical").image
    prepared = Preprocessing(intensity=KINDS["zscore"]).scan(scan)
    data = (scan.data - scan.data.mean()) / scan.data.std()
    every_third = data[1:110:3, 1::3, 1::3]  # to 109 of 111, 94 of 95 and 70 of 71: as far from either end, or one
    assert np.allclose(prepared.sample(2**16)[0], every_third.ravel(), atol=1e-5)
    assert Looks.of(prepared).quantiles[0] == pytest.approx(np.quantile(data, QUANTILES), abs=0.02)


@pytest.mark.parametrize("shape", [(1, 1, 1), (90, 2, 1), (41, 40, 39), (7, 300, 8)])
@pytest.mark.parametrize("count", [1, 100, 20_000])
def test_a_sample_of_a_thin_scan_has_few_voxels_and_at_least_one(shape, count):
    scan = Preprocessing().scan(Volume(np.random.default_rng(0).random(shape), np.eye(4)))
    assert 1 <= scan.sample(count).shape[1] <= max(count, max(shape))


def test_other_units_are_usual_after_a_zscore_and_unusual_without():
    stretched = changed(SCANS[0].data.astype(np.float64) * 7 + 300)
    assert quantities(stretched) == []
    assert any("intensity quantile" in quantity for quantity in quantities(stretched, "none"))
    assert "share of voxels at the highest intensity" in quantities(stretched, "window")


def test_three_times_the_spacing_is_unusual():
    coarse = changed(affine=SCANS[0].affine @ np.diag([3, 3, 3, 1]))
    assert sorted(quantities(coarse)) == [f"{kind} {axis} (mm)" for kind in ("extent", "spacing") for axis in "xyz"]


def test_the_spacing_counts_as_stored_whatever_the_network_resamples_to():
    coarse = changed(affine=SCANS[0].affine @ np.diag([3, 3, 3, 1]))
    assert ranges().unusual(looks(coarse, spacing=(1.0, 1.0, 1.0))) == ranges().unusual(looks(coarse))


def test_a_background_of_one_value_is_unusual():
    masked = SCANS[0].data.copy()
    masked[: len(masked) // 2] = 0
    assert "share of voxels at the lowest intensity" in quantities(changed(masked))


def test_the_quantiles_do_not_depend_on_how_large_the_background_is():
    """Around a background of half the scan, the median of all voxels would jump from the background to the body."""
    medians = []
    for planes in (19, 20, 21):  # of 40
        scan = Volume(np.random.default_rng(0).normal(size=(40, 36, 34)) + 10, np.eye(4))
        scan.data[:planes] = 0
        medians.append(looks(scan, "none").quantiles[0, 2])
    assert medians == pytest.approx([10, 10, 10], abs=0.02)


def test_channels_are_compared_each_on_its_own():
    pair = [Volume(np.stack([scan.data, 2 * scan.data], axis=-1), scan.affine) for scan in SCANS]
    known = Appearance.of(looks(scan) for scan in pair)
    assert len(known.ranges) == 6 + 2 * 7
    masked = pair[0].data.copy()
    masked[: len(masked) // 2, ..., 1] = 0
    found = known.unusual(looks(Volume(masked, pair[0].affine)))
    assert found
    assert all(one.quantity.endswith(" of channel 1") for one in found)


def test_bounds_are_the_ranges_with_their_margins():
    each, known = [looks(scan).named() for scan in SCANS], ranges()
    assert (known.scans, list(known.ranges)) == (4, list(each[0]))
    span = known.ranges["95% intensity quantile"].greatest - known.ranges["5% intensity quantile"].least
    for name, found in known.ranges.items():
        values = [one[name] for one in each]
        assert (found.least, found.greatest) == (min(values), max(values))
        if "(mm)" in name:
            expected = found.least / LENGTH_FACTOR, found.greatest * LENGTH_FACTOR
        elif "share" in name:
            expected = max(found.least - SHARE_MARGIN, 0), found.greatest + SHARE_MARGIN
        else:
            expected = found.least - SPAN_MARGIN * span, found.greatest + SPAN_MARGIN * span
        assert (found.low, found.high) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_the_greatest_difference_comes_first_and_the_text_is_one_line():
    known = Appearance(
        scans=2,
        ranges={
            "extent x (mm)": Range(least=80, greatest=120, low=64, high=150),
            "extent y (mm)": Range(least=55, greatest=55, low=44, high=68.75),
            "spacing x (mm)": Range(least=1, greatest=1, low=0.8, high=1.25),
        },
    )
    scan = Looks(np.array([[0.5, 1, 1], [160, 137, 50]]), np.zeros((1, 5)), np.zeros((1, 2)))
    first, second, third = known.unusual(scan)
    assert first == Unusual("extent y (mm)", 137, 55, 55)
    assert (second.quantity, third.quantity) == ("spacing x (mm)", "extent x (mm)")
    begin = "scan does not look like the training scans, so its mask may be wrong: "
    seen = "extent x (mm) is 160, in training 80 to 120"
    assert unusual_text("scan", [third]) == begin + seen
    assert unusual_text("scan", [third, first]) == f"{begin}{seen}; 1 other quantity differs too"
    assert unusual_text("scan", [first, second, third]) == (
        f"{begin}extent y (mm) is 137, in training 55; 2 other quantities differ too"
    )


def test_nothing_known_finds_nothing_and_json_keeps_everything():
    assert Appearance().unusual(looks(SCANS[0])) == []
    text = ranges().model_dump_json()
    assert len(text) < 2000
    assert Appearance.model_validate(json.loads(text)) == ranges()
