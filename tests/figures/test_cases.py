"""Cases by methods: the right plane, contours where the masks are, Dice of the whole scan, the same bytes."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib import image

from fheat.figures.cases import ComparedCase, largest_section, panels_picture, shown_window
from fheat.figures.surfaces import surfaces_picture
from fheat.metrics.evaluate import evaluate

SHAPE, SPACING = (60, 50, 20), (1.0, 2.0, 3.0)


def block(*bounds):
    mask = np.zeros(SHAPE, dtype=np.uint8)
    mask[tuple(slice(*pair) for pair in bounds)] = 1
    return mask


TRUE = block((20, 40), (15, 35), (5, 15))
WRONG = block((20, 40), (15, 35), (5, 15)) | block((4, 8), (15, 19), (5, 15))


def case(name="first", **masks):
    scan = np.random.default_rng(0).normal(100, 5, SHAPE)
    return ComparedCase(name, scan, TRUE, masks or {"right": TRUE, "wrong": WRONG}, SPACING)


def pixels(png):
    return image.imread(BytesIO(png))[..., :3]


def blue_and_orange(picture):
    """Pixels of the contours of the reference and of the prediction."""
    red, blue = picture[..., 0], picture[..., 2]
    return blue - red > 0.4, red - blue > 0.4


def columns_of(picture, count):
    """The panels of a single row, cut out where the picture is not white."""
    filled = (picture.min(axis=-1) < 0.95).mean(axis=0) > 0.5
    edges = np.flatnonzero(np.diff(np.r_[0, filled.astype(int), 0]))
    assert len(edges) == 2 * count
    return [picture[:, start:stop] for start, stop in edges.reshape(-1, 2)]


def test_the_plane_with_the_largest_section():
    mask = block((20, 30), (15, 25), (5, 15)) | block((20, 40), (15, 35), (12, 14))
    assert [largest_section(mask.astype(bool), axis) for axis in range(3)] == [20, 15, 12]
    assert largest_section(np.zeros(SHAPE, bool), 1) == 25


def test_the_window_holds_all_masks_and_the_margin():
    assert shown_window(case(), 2) == (slice(0, 55), slice(7, 43))  # 15 mm: 15 voxels, and 8 of 2 mm
    assert shown_window(case(right=TRUE), 0) == (slice(7, 43), slice(0, 20))
    empty = ComparedCase("empty", np.zeros(SHAPE), np.zeros(SHAPE), {"none": np.zeros(SHAPE)}, SPACING)
    assert shown_window(empty, 2) == (slice(0, 60), slice(0, 50))


def test_contours_are_where_the_masks_are():
    picture = pixels(panels_picture([case()]).data)
    plain, reference, right, wrong = (blue_and_orange(panel) for panel in columns_of(picture, 4))
    assert not plain[0].any()
    assert not plain[1].any()
    assert reference[0].sum() > 200
    assert not reference[1].any()
    assert right[1].sum() > 200  # orange lies on the blue contour
    assert right[0].sum() < 0.1 * reference[0].sum()
    assert wrong[1].sum() > right[1].sum() + 50
    true = np.flatnonzero(reference[0].any(axis=0))
    false = np.flatnonzero((wrong[1] & ~right[1]).sum(axis=0) > 2)  # single pixels of the other contour differ
    millimetre = (true[-1] - true[0]) / 20  # the block is 20 mm wide
    assert (true[0] - false[0]) / millimetre == pytest.approx(16, abs=1)  # from 4 to 20
    assert (false[-1] - false[0]) / millimetre == pytest.approx(4, abs=1)
    height = np.flatnonzero(reference[0].any(axis=1))
    assert (height[-1] - height[0]) / millimetre == pytest.approx(40, abs=2)  # 20 voxels of 2 mm


def test_captions_state_plane_and_dice():
    second = ComparedCase("second", np.zeros(SHAPE), TRUE, {"wrong": TRUE, "right": WRONG}, SPACING)
    score = evaluate(WRONG, TRUE).dice
    assert 0.9 < score < 1
    for picture in (panels_picture([case(), second]), surfaces_picture([case(), second])):
        assert f"first: right 1.0000, wrong {score:.4f}; second: wrong 1.0000, right {score:.4f}." in picture.caption
    words = panels_picture([case()], axis=0, words="LA with 4 labels.").caption
    assert words.startswith("The sagittal plane with the largest section of the reference (first plane 20)")
    assert words.endswith("LA with 4 labels.")


def test_wrong_parts_of_surfaces_are_coloured():
    missed = block((20, 40), (15, 35), (5, 10))

    def tints(**masks):
        picture = pixels(surfaces_picture([case(**masks)]).data)[:-40]  # without the key
        return [int(tint.sum()) for tint in blue_and_orange(picture)]

    assert tints(right=TRUE) == [0, 0]
    blue, red = tints(wrong=WRONG)
    assert red > 100
    assert blue == 0
    blue, red = tints(missed=missed)
    assert blue > 300
    assert red == 0


def test_the_same_bytes_and_any_name():
    odd = [case("$x_1$ & <b>", **{"a $ b": TRUE})]
    for draw in (panels_picture, surfaces_picture):
        first, second = (draw(odd, "cases") for _ in range(2))
        assert first.data == second.data
        assert first.file == "cases.png"
        assert "&lt;b&gt;" in first.html


def test_several_channels_and_empty_masks():
    scan = np.random.default_rng(0).normal(100, 5, (*SHAPE, 2))
    zeros = np.zeros(SHAPE, bool)
    for reference, mask, score in ((TRUE, zeros, 0), (zeros, TRUE, 0), (zeros, zeros, 1)):
        compared = [ComparedCase("first", scan, reference, {"method": mask}, SPACING)]
        for draw in (panels_picture, surfaces_picture):
            assert f"method {score:.4f}" in draw(compared).caption


def test_bad_cases_are_refused():
    with pytest.raises(ValueError, match="cases is empty"):
        panels_picture([])
    with pytest.raises(ValueError, match="other and first differ in the methods x: give the masks of all"):
        surfaces_picture([case(a=TRUE), case("other", a=TRUE, x=TRUE)])
    with pytest.raises(ValueError, match="x of first has values other than 0 and 1: give the mask of one class"):
        case(x=2 * TRUE)
    with pytest.raises(ValueError, match=r"x \(60, 50, 19\) and reference \(60, 50, 20\): give arrays"):
        case(x=TRUE[..., 1:])
    with pytest.raises(ValueError, match="of first is not usable: give three numbers above 0"):
        ComparedCase("first", np.zeros(SHAPE), TRUE, {}, (1.0, 0.0, 1.0))
