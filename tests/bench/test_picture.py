"""The picture: time against work for all networks on logarithmic axes, and bars of starts that add up."""

import pytest
from matplotlib.figure import Figure

from fheat.bench.picture import PANELS, panels_of, picture, start_bars, work_points
from fheat.bench.show import tables

SIZES = {
    "patches": ["32x32x32", "64x64x64"],
    "voxels": [32**3, 64**3],
    "batch": 2,
    "macs": {"a": [1e9, 8e9], "b": [3e9, 24e9]},
    "milliseconds": {"a": [10.0, 80.0], "b": [5.0, 40.0]},
    "exponent": {"a": 1.0, "b": 1.0},
}
WINDOW = {
    "patch": "64x64x48",
    "batch": 1,
    "milliseconds": {"a": 10.0, "b": 20.0},
    "ratio": {"a": 1.0, "b": 2.0},
    "parameters": {"a": 1000, "b": 2000},
    "macs": {"a": 1e9, "b": 5e9},
}
PARTS = {"import torch": 1.0, "import fheat": 0.5, "model": 0.25, "compile or open": 2.0, "first scan": 0.75}
STARTED = {
    "command_s": {"no cache": 5.0, "filled cache": 3.0},
    "scan_s": 0.5,
    "parts_s": {"no cache": PARTS, "filled cache": PARTS | {"compile or open": 0.25}},
    "ratio": {"no cache": 10.0, "filled cache": 6.0},
    "windows": 8,
    "window": [64, 64, 48],
    "stride": [16, 16, 12],
}
START = {"shape": "96x80x64", "runtime": "openvino", "networks": {"a": STARTED}}
READ = {
    "scans": 4,
    "shape": "96x80x64",
    "seconds": {"nibabel": 0.1, "trusted": 0.2, "confined": 0.3},
    "ratio": {"nibabel": 1.0, "trusted": 2.0, "confined": 3.0},
    "threads": 2,
    "threads_seconds": {"nibabel": 0.05, "trusted": 0.1, "confined": 0.15},
    "threads_ratio": {"nibabel": 1.0, "trusted": 2.0, "confined": 3.0},
    "start_s": 0.4,
    "store_scans": 4,
    "store_seconds": {"1 at a time": 0.4, "2 at a time": 0.2},
    "store_ratio": {"1 at a time": 1.0, "2 at a time": 0.5},
}
ROW = {"wall_s": 4.0, "scans_per_minute": 60.0, "busy_share": 0.75, "peak_bytes": 2**29, "peak_over_bound": 0.9}
COHORT = {
    "scans": 4,
    "shape": "96x80x64",
    "networks": {"a": {"segmented": {"in turn": ROW, "overlap": ROW}, "same_masks": False}},
    "scored": {"1 at a time": {"wall_s": 2.0, "cases_per_minute": 120.0}},
    "same_scores": True,
}
RECORD = {
    "results": {"window": WINDOW, "sizes": SIZES, "start": START, "read": READ, "cohort": COHORT},
    "not_available": {},
    "notes": [],
    "machine": {"name": "some processor", "device": "cpu", "threads": 2, "torch": "2.13.0"},
}


def drawn(name, result, panel=0):
    axes = Figure().add_subplot()
    draw, given = panels_of({name: result})[panel]
    draw(axes, given)
    return axes


def test_work_is_multiply_adds_of_a_pass():
    assert work_points(SIZES) == {"a": ([2.0, 16.0], [10.0, 80.0]), "b": ([6.0, 48.0], [5.0, 40.0])}
    assert work_points(WINDOW) == {"a": ([1.0], [10.0]), "b": ([5.0], [20.0])}


@pytest.mark.parametrize(("name", "result"), [("sizes", SIZES), ("window", WINDOW)])
def test_time_against_work_has_every_network_on_logarithmic_axes(name, result):
    axes = drawn(name, result, panel=1)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["a", "b", "linear"]
    for network, (macs, times) in work_points(result).items():
        assert list(lines[network].get_xdata()) == macs
        assert list(lines[network].get_ydata()) == times
    (x0, x1), (y0, y1) = lines["linear"].get_data()
    assert y1 / y0 == pytest.approx(x1 / x0)


def test_records_without_multiply_adds_are_still_drawn():
    old = {name: value for name, value in SIZES.items() if name != "macs"}
    assert len(panels_of({"sizes": old})) == 1
    assert len(panels_of({"sizes": SIZES})) == 2


def test_the_parts_of_a_start_are_stacked_and_the_command_is_marked():
    axes = drawn("start", START)
    assert list(start_bars(START)) == ["a\nno cache", "a\nfilled cache", "a\nthe scan itself"]
    ends = {}
    for patch in axes.patches:
        assert patch.get_x() == pytest.approx(ends.get(patch.get_y(), 0.0))  # where the part before it ended
        ends[patch.get_y()] = patch.get_x() + patch.get_width()
    assert sorted(ends.values()) == pytest.approx([0.5, 2.75, 4.5])
    (marks,) = axes.get_lines()
    assert dict(zip(marks.get_ydata(), marks.get_xdata(), strict=True)) == {2: 5.0, 1: 3.0}


def test_bars_of_reading_and_of_cohorts():
    assert [bar.get_width() for bar in drawn("read", READ).patches[::-1]] == [0.1, 0.2, 0.3, 0.05, 0.1, 0.15, 0.4, 0.2]
    labels = [text.get_text() for text in drawn("cohort", COHORT).get_yticklabels()]
    assert labels == ["a\noverlap, busy 75%", "a\nin turn, busy 75%"]


def test_every_part_has_a_panel_and_a_table():
    assert picture(RECORD).startswith(b"\x89PNG")
    assert {"operator", "step", "window", "scan", "start", "read", "cohort"} <= set(PANELS)
    text = " ".join(tables(RECORD).split())
    assert "network start s ratio import torch import fheat model compile or open first scan" in text
    assert "a no cache 5.00 10.00 x 1.00 0.50 0.25 2.00 0.75" in text
    assert "a the scan itself 0.50 1.00 x" in text
    assert "a: 8 windows 64x64x48 by 16x16x12" in text
    assert "confined 0.300 3.00 x 0.150 3.00 x" in text
    assert "2 at a time 0.200 0.50 x" in text
    assert "a in turn 4.00 60.0 75% 512 0.90 masks differ" in text
    assert "1 at a time 2.00 120.0" in text
