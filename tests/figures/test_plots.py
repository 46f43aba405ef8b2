"""Plots of many gates: lines that can be told apart, and a legend that fits."""

import pytest

from fheat.figures.plots import gate_styles, plot, plt, short_names

LONG = [f"body.decoder{stage}.conv_block.conv{place}.conv" for stage in range(1, 6) for place in range(1, 4)]


@pytest.mark.parametrize("count", [1, 8, 9, 14, 15])
def test_open_gates_are_told_apart_by_colour_and_stroke(count):
    styles = gate_styles(LONG, LONG[:count])
    lines = {(style["color"], style["linestyle"]) for site, style in styles.items() if site in LONG[:count]}
    assert len(lines) == count
    assert len({styles[site]["label"] for site in LONG[:count]}) == count


def test_a_legend_does_not_name_more_gates_than_it_has_room_for():
    sites = [f"site{number}" for number in range(40)]
    labels = [style["label"] for style in gate_styles(sites, sites).values()]
    assert [label for label in labels if label != "_"] == [*sites[:16], "24 more"]


@pytest.mark.parametrize(
    ("sites", "names"),
    [
        (["enc1", "dec1"], ["enc1", "dec1"]),
        (LONG[:2], ["conv1.conv", "conv2.conv"]),
        ([LONG[0], LONG[3]], ["decoder1.conv_block.conv1.conv", "decoder2.conv_block.conv1.conv"]),
        ([], []),
        (["a" * 40], ["a" * 14 + "…" + "a" * 14]),
        (
            ["a" * 20 + "x" + "a" * 20, "a" * 20 + "y" + "a" * 20],
            ["a" * 20 + "x" + "a" * 20, "a" * 20 + "y" + "a" * 20],
        ),
    ],
)
def test_names_in_a_legend_are_short_and_stay_different(sites, names):
    assert short_names(sites) == names


@pytest.mark.parametrize("sites", [LONG, [f"enc{number}" for number in range(8)], ["one.long.path." * 3]])
def test_a_legend_fits_and_leaves_the_plot_its_height(sites):
    with plot("D", "words") as drawing:
        for style in gate_styles(sites, sites).values():
            drawing.axes.plot([1, 2], [0, 1], **style)
        drawing.legend()
        figure = drawing.axes.figure
        (legend,) = figure.legends
        figure.canvas.draw()
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        assert drawing.axes.get_window_extent().height > 0.55 * 3.0 * figure.dpi
    assert plt.get_fignums() == []
