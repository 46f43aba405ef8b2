"""Rendered surfaces: to scale, seen from the right side, and wrong voxels coloured as wrong."""

import numpy as np
import pytest

from fheat.figures.rendering import BEYOND, FULL_COLOUR, MISSED, PIXELS, View, coloured, render, signed_distance

FRONT = (0.0, 0.0)


def ball(radius, shape=(31, 31, 31), spacing=(1.0, 1.0, 1.0), middle=None):
    """Voxels within a radius of a point, in millimetres; by default of the middle of the grid."""
    places = [np.arange(length) * step for length, step in zip(shape, spacing, strict=True)]
    middle = [place.mean() for place in places] if middle is None else middle
    squares = [(place - at) ** 2 for place, at in zip(places, middle, strict=True)]
    return sum(np.meshgrid(*squares, indexing="ij")) <= radius**2


def seen(predicted, true=None, spacing=(1.0, 1.0, 1.0), view=FRONT):
    true = predicted if true is None else true
    return render(signed_distance(predicted, spacing), signed_distance(true, spacing), spacing, view)


def rgb(colour):
    return [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.5, 2.0, 1.25)])
def test_signed_distance_is_that_to_the_nearest_voxel_of_the_other_side(spacing):
    mask = np.random.default_rng(0).random((6, 5, 4)) < 0.3
    points = np.stack(np.indices(mask.shape), axis=-1).reshape(-1, 3) * spacing
    inside = mask.ravel()
    expected = []
    for point, here in zip(points, inside, strict=True):
        nearest = np.linalg.norm(points[inside != here] - point, axis=1).min() - min(spacing) / 2
        expected.append(-nearest if here else nearest)
    np.testing.assert_allclose(signed_distance(mask, spacing).ravel(), expected, rtol=1e-5)


def test_an_empty_mask_is_further_away_than_anything():
    assert (signed_distance(np.zeros((3, 4, 12), bool), (1.0, 1.0, 1.0)) == 13.0).all()
    view = seen(np.zeros((8, 8, 8), bool))
    assert np.isnan(view.error).all()
    assert (coloured(view) == 1).all()


@pytest.mark.parametrize("view", [FRONT, (90.0, 0.0), (0.0, 90.0), (25.0, 20.0)])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.5, 1.0, 2.0)])
def test_a_ball_is_a_disc_of_its_size_from_everywhere(view, spacing):
    shape = tuple(round(30 / step) + 1 for step in spacing)
    shown = seen(ball(11, shape, spacing), spacing=spacing, view=view)
    rows, columns = shown.error.shape
    assert max(rows, columns) == PIXELS
    right, up = _screen(view)
    pixel = max(np.abs(right) @ np.full(3, 30.0), np.abs(up) @ np.full(3, 30.0)) / PIXELS
    disc = ~np.isnan(shown.error)
    assert disc.sum() * pixel**2 == pytest.approx(np.pi * 11**2, rel=0.06)
    height, width = (np.flatnonzero(disc.any(axis=axis)) for axis in (1, 0))
    assert height.mean() == pytest.approx((rows - 1) / 2, abs=1.5)
    assert width.mean() == pytest.approx((columns - 1) / 2, abs=1.5)
    middle = shown.brightness[rows // 2 - 3 : rows // 2 + 3, columns // 2 - 3 : columns // 2 + 3]
    assert middle.min() > 0.97
    assert np.nanmin(shown.brightness) < 0.6


def _screen(view):
    """The directions to the right and up on the screen, from the definition of a view."""
    azimuth, elevation = np.radians(view)
    towards = np.array([np.sin(azimuth) * np.cos(elevation), np.cos(azimuth) * np.cos(elevation), np.sin(elevation)])
    right = np.array([-np.cos(azimuth), np.sin(azimuth), 0])
    return right, np.cross(towards, right)


def middle_of(view):
    """Row and column of the middle of what is seen, as shares of the picture."""
    rows, columns = np.nonzero(~np.isnan(view.error))
    return rows.mean() / view.error.shape[0], columns.mean() / view.error.shape[1]


@pytest.mark.parametrize(
    ("place", "view", "row", "column"),
    [
        ((24, 15, 15), (0, 0), 0.5, 0.2),  # from the front, the patient's right is on the left
        ((15, 15, 24), (0, 0), 0.2, 0.5),  # superior is up
        ((15, 24, 15), (90, 0), 0.5, 0.8),  # from the patient's right, the front is on the right
        ((24, 15, 15), (0, 90), 0.5, 0.2),
        ((15, 24, 15), (0, 90), 0.8, 0.5),  # from above, the front is below
    ],
)
def test_sides(place, view, row, column):
    assert middle_of(seen(ball(4, middle=place), view=view)) == pytest.approx((row, column), abs=0.02)


def test_what_lies_in_front_hides_what_lies_behind():
    false, true = ball(6, middle=(15, 23, 15)), ball(4, middle=(15, 5, 15))
    assert np.nanmin(seen(false | true, true).error) > 0
    from_behind = seen(false | true, true, view=(180.0, 0.0)).error
    assert from_behind[PIXELS // 2, PIXELS // 2] == 0
    assert np.nanmax(from_behind) > 8  # the rim of the larger ball


def test_errors_are_distances_with_the_sign_of_the_mistake():
    small, large = ball(8), ball(12)
    beyond, missed = seen(large, small), seen(small, large)
    assert np.nanmean(beyond.error) == pytest.approx(4, abs=0.3)
    np.testing.assert_allclose(missed.error, -beyond.error, atol=1e-9)
    np.testing.assert_array_equal(missed.brightness, beyond.brightness)
    assert np.nanmax(np.abs(seen(small).error)) == 0


def test_a_mirrored_mask_gives_the_mirrored_picture():
    mask = ball(6, middle=(10, 12, 17)) | ball(4, middle=(20, 18, 9))
    shown, mirrored = seen(mask, ball(7)), seen(mask[::-1], ball(7))
    np.testing.assert_allclose(mirrored.error[:, ::-1], shown.error, atol=1e-9)
    np.testing.assert_allclose(mirrored.brightness[:, ::-1], shown.brightness, atol=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_wrong_voxel_is_seen_in_its_place(sign):
    body, wrong = ball(6, (21, 21, 21)), np.zeros((21, 21, 21), bool)
    wrong[3, 10, 17] = True
    shown = seen(body | wrong, body) if sign > 0 else seen(body, body | wrong)
    picture = coloured(shown)
    tint = rgb(BEYOND if sign > 0 else MISSED)
    rows, columns = np.nonzero(np.sign(np.nan_to_num(shown.error)) * (np.abs(np.nan_to_num(shown.error)) > 1) == sign)
    assert rows.mean() / PIXELS == pytest.approx(1 - 17 / 20, abs=0.02)
    assert columns.mean() / PIXELS == pytest.approx(1 - 3 / 20, abs=0.02)
    pixel = picture[round(rows.mean()), round(columns.mean())]
    assert np.corrcoef(pixel, tint)[0, 1] > 0.9


def test_colours_from_agreement_to_full_error():
    errors = np.array([[0.0, FULL_COLOUR, -FULL_COLOUR, 3 * FULL_COLOUR, np.nan]])
    picture = coloured(View(errors, np.where(np.isnan(errors), np.nan, 1.0)))[0]
    assert np.ptp(picture[0]) < 0.05
    np.testing.assert_allclose(picture[1], rgb(BEYOND))
    np.testing.assert_allclose(picture[2], rgb(MISSED))
    np.testing.assert_array_equal(picture[3], picture[1])
    np.testing.assert_array_equal(picture[4], 1.0)
    dark = coloured(View(np.array([[FULL_COLOUR]]), np.array([[0.5]])))[0, 0]
    np.testing.assert_allclose(dark, picture[1] / 2)
