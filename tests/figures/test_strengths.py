"""Strengths of gates over training and at the end: lines, bars and words say the same numbers."""

import re
import xml.etree.ElementTree as ET

import pytest

from fheat.figures.strengths import strengths_picture
from fheat.gates.table import closed_from

SVG = "{http://www.w3.org/2000/svg}"
HISTORY = {
    0: {"enc1": 0.05, "enc2": 0.05, "dec1": 0.05},
    10: {"enc1": 0.0, "enc2": 0.02, "dec1": 0.06},
    20: {"enc1": 0.01, "enc2": 0.0, "dec1": 0.08},
    30: {"enc1": 0.03, "enc2": 0.0, "dec1": 0.12},
}


def words_of(picture):
    return [element.text for element in ET.fromstring(picture.data).iter(f"{SVG}text")]


def words_beside(picture, word):
    """The words on the line of a word, from left to right."""
    texts = list(ET.fromstring(picture.data).iter(f"{SVG}text"))
    height = next(float(text.get("y")) for text in texts if text.text == word)
    line = [text for text in texts if abs(float(text.get("y")) - height) < 0.1]
    return [text.text for text in sorted(line, key=lambda text: float(text.get("x")))]


def bars(picture):
    """Height of every bar in points, from left to right."""
    found = []
    for group in ET.fromstring(picture.data).iter(f"{SVG}g"):
        if re.match(r"strengths-patch_", group.get("id") or ""):
            path = group.find(f"{SVG}path")
            corners = [tuple(map(float, pair)) for pair in re.findall(r"([-\d.]+) ([-\d.]+)", path.get("d"))]
            style = path.get("style") or ""
            if len(corners) >= 4 and "fill: #" in style and path.get("clip-path"):
                found.append((min(x for x, _ in corners), max(y for _, y in corners) - min(y for _, y in corners)))
    return [height for _, height in sorted(found)]


def test_closed_from():
    assert closed_from([0, 10, 20], [0.1, 0.0, 0.0]) == 10
    assert closed_from([0, 10, 20], [0.0, 0.1, 0.0]) == 20
    assert closed_from([0, 10], [0.0, 0.1]) is None
    assert closed_from([5], [float("nan")]) is None


def test_the_caption_says_when_gates_closed_and_what_is_left():
    picture = strengths_picture(HISTORY, words="SegFormer3D.")
    assert picture.file == "strengths.svg"
    assert picture.caption == (
        "Strength D of every gate. 1 of 3 closed for good: enc2 at iteration 20. "
        "Open: enc1 with D = 0.0300, dec1 with D = 0.1200. SegFormer3D."
    )


def test_bars_are_the_last_strengths_in_order():
    picture = strengths_picture(HISTORY)
    heights = bars(picture)
    assert len(heights) == 3
    assert heights[0] / heights[2] == pytest.approx(0.25, rel=1e-3)
    assert heights[1] == 0
    words = words_of(picture)
    assert words.count("0.0300") == words.count("0.1200") == 1
    assert words_beside(picture, "enc2")[-3:] == ["enc1", "enc2", "dec1"]
    assert "enc2 (closed)" in words


def test_the_order_of_the_iterations_does_not_matter():
    backwards = {iteration: HISTORY[iteration] for iteration in reversed(HISTORY)}
    assert strengths_picture(backwards).data == strengths_picture(HISTORY).data


def test_all_open_or_all_closed_and_a_single_iteration():
    assert "None is open." in strengths_picture({5: {"a": 0.0, "b": 0.0}}).caption
    assert "0 of 1 closed for good. Open: a with D = 2.0000." in strengths_picture({5: {"a": 2.0}}).caption


def test_bad_histories_are_refused():
    with pytest.raises(ValueError, match="history is empty"):
        strengths_picture({})
    with pytest.raises(ValueError, match=r"history\[1\] and the last iteration differ in the sites b: log every gate"):
        strengths_picture({1: {"a": 1.0}, 2: {"a": 1.0, "b": 1.0}})
