"""The drawing of a network: boxes to scale, gates in their state, words of the network, the same bytes every time."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

from fheat import load
from fheat.figures.architecture import architecture_picture
from fheat.figures.block import columns, ranks, sizes
from fheat.gates.architecture import Skip, architecture
from fheat.ops.gates import gates_of
from tests.tiny_u import TinyU

SVG = "{http://www.w3.org/2000/svg}"


class Drawn:
    """What an SVG shows."""

    def __init__(self, picture):
        self.root = ET.fromstring(picture.data)
        self.words = [element.text for element in self.root.iter(f"{SVG}text")]
        self.marks = {mark.get("data-gate"): mark for mark in self.root.iter(f"{SVG}g")}
        self.dashed = [path for path in self.root.iter(f"{SVG}path") if path.get("stroke-dasharray")]

    def box(self, name):
        """Left, top, width and height of the first box of this name."""
        found = next(box for box in self.root.iter(f"{SVG}rect") if box.get("data-name") == name)
        return [float(found.get(side)) for side in ("x", "y", "width", "height")]

    def middle(self, name):
        left, top, width, height = self.box(name)
        return left + width / 2, top + height / 2


@pytest.fixture(scope="module")
def network():
    return architecture(load("la-4"))


@pytest.fixture(scope="module")
def drawn(network):
    return Drawn(architecture_picture(network))


def test_boxes_are_as_wide_as_their_stages_have_channels(network, drawn):
    widths = {stage.name: drawn.box(stage.name)[2] for stage in network.stages}
    for stage in network.stages:
        assert widths[stage.name] / widths["enc4"] == pytest.approx(stage.channels / 96, rel=1e-3)
    assert len({drawn.box(stage.name)[3] for stage in network.stages}) == 1


def test_the_u_is_symmetric_and_its_levels_are_equally_far_apart(drawn):
    axis = {sum(drawn.middle(f"{side}{level}")[0] for side in ("enc", "dec")) for level in (1, 2, 3, 4)}
    assert max(axis) - min(axis) < 0.02
    heights = [drawn.middle(f"enc{level}")[1] for level in (1, 2, 3, 4)]
    assert heights == [drawn.middle(f"dec{level}")[1] for level in (1, 2, 3, 4)]
    steps = {round(lower - upper, 6) for upper, lower in pairwise(heights)}
    assert len(steps) == 1
    assert steps.pop() > drawn.box("enc1")[3]


def test_words_are_those_of_the_network(drawn):
    for level in ("28x28x20, 24 channels", "14x14x10, 48 channels", "7x7x5, 60 channels", "4x4x3, 96 channels"):
        assert drawn.words.count(level) == 1
    assert drawn.words.count("padded to 8x8x6") == 2
    assert [drawn.words.count(f"{count} x LightBlock") for count in (1, 2, 3)] == [2, 4, 2]
    assert {"input 1x112x112x80", "output 2x112x112x80", "stem", "head", "dropout", "add position 96x4x4x3"} <= {
        *drawn.words
    }
    assert drawn.words.count("gate retired") == 6
    assert {"D 0.1778, alpha 0.6926", "D 0.5902, alpha 0.8880"} <= {*drawn.words}
    assert {"dec1.blocks.0.first", "FHEATBlock on 28x28x20, 24 channels", "FHEAT", "KAN3D"} <= {*drawn.words}
    assert {"Conv3d 24, 3x3x3 depthwise", "Conv3d 24→48, 1x1x1", "Rational 24"} <= {*drawn.words}


def test_the_caption_states_the_numbers(network):
    caption = architecture_picture(network).caption
    assert "974,620 parameters" in caption
    assert "7x7x5 with 60 channels" in caption
    assert "Open gates: enc1 (D = 0.1778, alpha = 0.6926), dec1 (D = 0.5902, alpha = 0.8880)." in caption
    assert "Retired gates: enc2, enc3, enc4, dec4, dec3, dec2." in caption


def test_gates_lie_in_their_stage_and_show_their_state(network, drawn):
    for stage in network.stages:
        mark = drawn.marks[stage.name] if stage.name != "dec1" else None
        if mark is not None:
            circle = mark.find(f"{SVG}circle")
            assert (float(circle.get("cx")), float(circle.get("cy"))) == pytest.approx(
                drawn.middle(stage.name), abs=0.02
            )
            assert mark.get("data-state") == stage.gates[0].state
    open_, retired = drawn.marks["enc1"].find(f"{SVG}circle"), drawn.marks["enc2"].find(f"{SVG}circle")
    assert (open_.get("fill"), open_.get("stroke-dasharray")) == ("#c8352b", None)
    assert retired.get("fill") == "none"
    assert retired.get("stroke-dasharray")
    marks = [mark for mark in drawn.root.iter(f"{SVG}g") if mark.get("data-gate") == "dec1"]
    assert len(marks) == 2  # in its stage and in the block


def test_a_closed_gate_is_drawn_closed():
    model = TinyU()
    gates_of(model)["enc.0.1"].set_strength(0.0)
    shown = Drawn(architecture_picture(architecture(model, (1, 1, 8, 6))))
    assert [site for site, mark in shown.marks.items() if mark.get("data-state") == "closed"] == ["enc.0.1"]
    closed, open_ = shown.marks["enc.0.1"], shown.marks["dec.0.1"]
    assert closed.find(f"{SVG}circle").get("fill") == "none"
    assert closed.find(f"{SVG}path") is not None
    assert open_.find(f"{SVG}circle").get("fill") == "#c8352b"
    assert open_.find(f"{SVG}path") is None
    assert closed.find(f"{SVG}title").text.startswith("enc.0.1: closed, D = 0.0000, alpha = ")
    assert shown.words.count("gate closed") == 1
    assert {"open gate", "closed gate, D = 0", "2 of 2 gates open"} <= {*shown.words}
    assert "retired gate, gone from the graph" not in shown.words


def test_a_stage_that_is_alone_stands_in_the_middle():
    shown = Drawn(architecture_picture(architecture(TinyU(), (1, 1, 8, 6))))
    assert 2 * shown.middle("bottom")[0] == pytest.approx(shown.middle("enc")[0] + shown.middle("dec")[0], abs=0.05)
    assert shown.middle("bottom")[1] > shown.middle("enc")[1]
    assert "cat" in shown.words
    marks = [shown.marks[f"bottom.{block}.1"].find(f"{SVG}circle").get("cx") for block in (0, 1)]
    assert sum(map(float, marks)) / 2 == pytest.approx(shown.middle("bottom")[0], abs=0.02)
    assert float(marks[1]) - float(marks[0]) == 16


def test_one_dashed_line_for_every_skip(network, drawn):
    assert len(drawn.dashed) == 3
    for path, level in zip(drawn.dashed, (3, 2, 1), strict=True):
        (x, y), (end, height) = (map(float, point.split()) for point in re.split("[ML]", path.get("d"))[1:])
        left, _, width, _ = drawn.box(f"enc{level}")
        assert (x, y) == pytest.approx((left + width, drawn.middle(f"enc{level}")[1]), abs=0.02)
        assert height == y
        assert left + width < end < drawn.box(f"dec{level}")[0]


def test_rows_and_columns_of_the_block(network):
    block = network.block
    row = dict(zip((step.name for step in block.steps), ranks(block), strict=True))
    column = dict(zip((step.name for step in block.steps), columns(block), strict=True))
    assert (row["fheat.depthwise"], row["chunk"], row["dec1"], row["silu"]) == (0, 2, 3, 3)
    assert max(row.values()) == row["add"] == len(block.steps) - 2  # two steps share a row
    assert [name for name, place in column.items() if place] == ["silu"]
    for step, here in zip(block.steps, ranks(block), strict=True):
        assert all(ranks(block)[source] < here for source in step.sources if source >= 0)
    assert sizes(replace(block.steps[0], groups=4)) == "24, 3x3x3 in 4 groups"


def test_the_same_bytes_and_another_name(network):
    first, second = (architecture_picture(network) for _ in range(2))
    assert first.data == second.data
    named = architecture_picture(network, "fheat-seg")
    assert (named.file, named.html.count('id="fheat-seg')) == ("fheat-seg.svg", 2)
    assert "var(--line-0, #c8352b)" in named.html
    assert b"var(" not in named.data


def test_a_skip_that_leads_elsewhere_is_refused(network):
    odd = replace(network, skips=(Skip("stem", "dec1", "add"),))
    with pytest.raises(ValueError, match="the skip from stem to dec1 does not lead from stage to stage"):
        architecture_picture(odd)
    third = replace(network.stages[0], name="another")
    with pytest.raises(
        ValueError, match="level 1 has the stages another, enc1, dec1: a U has one or two on each level"
    ):
        architecture_picture(replace(network, parts=(third, *network.parts)))
