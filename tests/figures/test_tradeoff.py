"""Dice against parameters: circles in their place and to scale, hollow where published, names that can be read."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from fheat.figures.tradeoff import MethodScore, diameters, free_place, overlap, tradeoff_picture

SVG = "{http://www.w3.org/2000/svg}"
SCORES = [
    MethodScore("Light-UNETR", 1_400_000, 0.89, published=True),
    MethodScore("FHEAT-Seg", 900_000, 0.90, 0.004, published=True),
    MethodScore("FHEAT-Seg", 900_000, 0.91, 0.002),
    MethodScore("SegResNet", 4_700_000, 0.88),
]


class Drawn:
    """Circles, error bars and words of the figure, in points."""

    def __init__(self, scores):
        self.root = ET.fromstring(tradeoff_picture(scores).data)
        self.words = [element.text for element in self.root.iter(f"{SVG}text")]
        self.circles = [self._circle(group) for group in self._groups("PathCollection")]
        self.bars = [self._points(group.find(f"{SVG}path")) for group in self._groups("LineCollection")]

    def _groups(self, kind):
        return [group for group in self.root.iter(f"{SVG}g") if re.match(f"tradeoff-{kind}_", group.get("id") or "")]

    def _points(self, path):
        return np.array([[float(x), float(y)] for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path.get("d"))])

    def _circle(self, group):
        """Place, diameter and style of a circle."""
        path, use = next(group.iter(f"{SVG}path")), next(group.iter(f"{SVG}use"), None)
        place = (0, 0) if use is None else (float(use.get("x")), float(use.get("y")))
        low, high = (edge(self._points(path), axis=0) + place for edge in (np.min, np.max))
        return *(low + high) / 2, high[0] - low[0], (path if use is None else use).get("style")


@pytest.fixture(scope="module")
def drawn():
    return Drawn(SCORES)


def test_places_are_those_of_parameters_and_dice(drawn):
    x, y = (np.array([circle[axis] for circle in drawn.circles]) for axis in (0, 1))
    scores = np.array([(score.parameters, score.dice) for score in SCORES])
    slope, start = np.polyfit(scores[:, 0], x, 1)
    np.testing.assert_allclose(slope * scores[:, 0] + start, x, atol=1e-3)
    assert slope > 0
    slope, start = np.polyfit(scores[:, 1], y, 1)
    np.testing.assert_allclose(slope * scores[:, 1] + start, y, atol=1e-3)
    assert slope < 0  # up is more


def test_areas_are_the_parameters(drawn):
    areas = np.array([circle[2] ** 2 for circle in drawn.circles])
    np.testing.assert_allclose(areas / areas[-1], [score.parameters / 4_700_000 for score in SCORES], rtol=1e-3)
    assert diameters(SCORES)[3] == max(diameters(SCORES)) == 22


def test_published_circles_are_hollow_and_a_method_has_one_colour(drawn):
    styles = [circle[3] for circle in drawn.circles]
    assert ["fill: none" in style for style in styles] == [True, True, False, False]
    strokes = [re.search(r"stroke: (#\w+)", style)[1] for style in styles]
    assert strokes[1] == strokes[2]
    assert len(set(strokes)) == 3


def test_error_bars_where_there_are_several_seeds(drawn):
    assert len(drawn.bars) == 2
    lengths = [np.ptp(bar[:, 1]) for bar in drawn.bars]
    assert lengths[0] / lengths[1] == pytest.approx(2, rel=1e-3)
    rise = (drawn.circles[0][1] - drawn.circles[2][1]) / 2  # points for one point of Dice
    assert lengths[0] == pytest.approx(2 * 0.4 * rise, rel=1e-2)
    assert drawn.bars[1][:, 1].mean() == pytest.approx(drawn.circles[2][1], abs=1e-2)


def test_words(drawn):
    assert [drawn.words.count(name) for name in ("Light-UNETR", "FHEAT-Seg", "SegResNet")] == [1, 2, 1]
    assert {"published", "measured here", "parameters, millions", "Dice, %"} <= {*drawn.words}
    assert "published" not in Drawn(SCORES[2:]).words
    caption = tradeoff_picture(SCORES, words="LA.").caption
    assert "FHEAT-Seg 90.00 ± 0.40 % with 900,000 (published)" in caption
    assert "SegResNet 88.00 % with 4,700,000 (measured here). LA." in caption


def test_a_wide_range_has_a_logarithmic_axis():
    x = [circle[0] for circle in Drawn([replace(SCORES[0], parameters=10**n) for n in (5, 6, 7)]).circles]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], rel=1e-3)


def test_the_same_bytes():
    assert tradeoff_picture(SCORES).data == tradeoff_picture(SCORES).data


def test_names_cover_neither_circles_nor_each_other():
    inside = (0.0, 0.0, 300.0, 200.0)
    taken = [(40.0, 40.0, 60.0, 60.0)]
    for _ in range(12):
        place = free_place("Light-UNETR", (50.0, 50.0), 10.0, taken, inside)
        assert not any(overlap(place, other) for other in taken)
        assert place[0] >= 0
        assert place[1] >= 0
        taken.append(place)
    assert taken[1][0] == 63  # first on the right, beside the circle
    right_edge = free_place("Light-UNETR", (290.0, 100.0), 5.0, [], inside)
    assert right_edge[2] == 282  # left of the circle, where the right has no room
    assert overlap((0, 0, 2, 2), (1, 1, 3, 3))
    assert not overlap((0, 0, 2, 2), (2, 0, 3, 2))


def test_bad_scores_are_refused():
    with pytest.raises(ValueError, match="scores is empty"):
        tradeoff_picture([])
    with pytest.raises(ValueError, match=r"dice=90.47 of FHEAT-Seg is not in 0 to 1: divide a percentage by 100"):
        tradeoff_picture([replace(SCORES[1], dice=90.47)])
    with pytest.raises(ValueError, match="parameters=0 of FHEAT-Seg is not a count"):
        tradeoff_picture([replace(SCORES[1], parameters=0)])
    with pytest.raises(ValueError, match="sd=nan of FHEAT-Seg is not in 0 to 1: use None for a single run"):
        tradeoff_picture([replace(SCORES[1], sd=float("nan"))])
