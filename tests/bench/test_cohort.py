"""Cohorts: what is written, that both ways give the same masks, what the meter counts, and which round counts."""

import numpy as np
import pytest

from fheat.bench import cohort, metered
from fheat.bench.cohort import DISTINCT, Cohort, body, score_times, segment_times, write_cohort
from fheat.bench.stored import model_folders
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.io import read_nifti

SHAPE = (48, 44, 40)
WINDOWS = Windows((32, 32, 32), (16, 16, 16))


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    place = tmp_path_factory.mktemp("cohort")
    write_cohort(place, 3, SHAPE)
    model = model_folders(["fheat_seg/survivor"], WINDOWS, place).folders["fheat_seg/survivor"]
    return Cohort(place, 3, SHAPE, str(model))


def test_a_body_is_brighter_inside_its_organ():
    data, organ = body(SHAPE, 3)
    assert data.dtype == np.int16
    assert data[organ == 1].mean() == pytest.approx(120, abs=2)
    assert data[0, 0].mean() == pytest.approx(-1000, abs=10)
    assert 0.005 < organ.mean() < 0.3
    assert not np.array_equal(data, body(SHAPE, 4)[0])
    assert np.array_equal(data, body(SHAPE, 3)[0])


def test_a_large_cohort_is_links_to_a_few_scans(tmp_path):
    write_cohort(tmp_path, DISTINCT + 2, (8, 8, 8))
    for kind in ("scans", "predicted", "reference"):
        files = sorted((tmp_path / kind).iterdir())
        assert len(files) == DISTINCT + 2
        assert files[DISTINCT + 1].samefile(files[1])
        assert len({file.stat().st_ino for file in files}) == DISTINCT
    reference, predicted = (read_nifti(tmp_path / kind / "case0001.nii.gz").data for kind in ("reference", "predicted"))
    assert np.array_equal(np.roll(reference, 2, 0), predicted)


def test_both_ways_give_the_masks_of_every_scan(scans, monkeypatch, tmp_path):
    monkeypatch.setattr(SlidingWindow, "forward", SlidingWindow.forward)  # which the program replaces
    order = {"model": scans.model, "scans": str(scans.folder / "scans"), "count": 3, "shape": list(SHAPE)}
    order |= {"device": "cpu", "precision": "float32", "stride": None}
    found = [
        metered.main({**order, "overlap": overlap, "out": str(tmp_path / str(overlap))}) for overlap in (False, True)
    ]
    assert found[0]["masks"] == found[1]["masks"]
    assert len(found[0]["masks"]) == 3
    for one in found:
        assert one["windows"] == 3 * WINDOWS.count(SHAPE) == 24
        assert 0 < one["busy"] < one["wall"]
        assert one["peak"] > 2**26
        assert one["bound"] > 2**26
    assert len(list((tmp_path / "True").glob("case*.nii.gz"))) == 3


def test_the_meter_counts_the_network_alone(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metered.time, "perf_counter", lambda: now[0])

    def forward(window, x):
        now[0] += 2.0
        return x + window

    monkeypatch.setattr(metered, "_FORWARD", forward)
    meter = metered.Meter("cpu")
    assert [meter.forward(1, x) for x in (1, 2)] == [2, 3]
    now[0] += 100
    assert meter.seconds() == 4.0


def test_the_fastest_round_counts_and_masks_that_differ_are_told(scans, monkeypatch):
    walls = iter([10.0, 6.0, 8.0, 7.0])
    asked, progress = [], []

    def segment(one, way):
        asked.append(way)
        wall = next(walls)
        return {"wall": wall, "busy": wall / 2, "peak": 90, "bound": 100, "windows": 24, "masks": ["a", "b", "c"]}

    monkeypatch.setattr(cohort, "_segment", segment)
    found = segment_times(scans, 2, lambda done, total: progress.append((done, total)))
    assert asked == ["in turn", "overlap"] * 2
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found["segmented"]["in turn"]["wall_s"] == 8.0
    assert found["segmented"]["overlap"]["scans_per_minute"] == 60 * 3 / 6.0
    assert found["segmented"]["overlap"]["busy_share"] == 0.5
    assert found["segmented"]["overlap"]["peak_over_bound"] == 0.9
    assert found["time_of_overlap"] == 0.75
    assert found["same_masks"]
    walls = iter([1.0, 1.0])
    answers = iter("ab")
    monkeypatch.setattr(cohort, "_segment", lambda one, way: {**segment(one, way), "masks": [next(answers)]})
    assert not segment_times(scans)["same_masks"]


def test_scores_do_not_depend_on_how_many_are_scored_at_a_time(scans):
    found = score_times(scans, 2)
    assert found["same_scores"]
    one, two = found["scored"]["1 at a time"], found["scored"]["2 at a time"]
    assert found["time_of_several"] == two["wall_s"] / one["wall_s"]
    assert one["cases_per_minute"] == pytest.approx(180 / one["wall_s"])


@pytest.mark.slow
def test_a_real_process_keeps_to_its_bound(scans):
    found = segment_times(scans)
    assert found["same_masks"]
    for row in found["segmented"].values():
        assert 0 < row["peak_over_bound"] <= 1
        assert 0 < row["busy_share"] < 1
